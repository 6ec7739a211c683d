"""Start of a language model's run: folder, tokenized texts, and the checkpoint to resume from."""

import hashlib
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.build import build_tokenizer
from asr.checkpoint.language_model import LANGUAGE_MODEL_KEYS
from asr.checkpoint.load import CHECKPOINTS, checkpoint_extra, read_model
from asr.data.text_set import Sentences, TextSet, read_sentences
from asr.interchange.hub import path_of
from asr.run import folder
from asr.run.events import TextStarted
from asr.run.language_model_settings import LanguageModelSettings
from asr.run.resume import changes_but_for, find_resume
from asr.run.run_state import RunState, enter_run
from asr.settings.read import as_mapping
from asr.text.normalize import get_normalizer

if TYPE_CHECKING:
    from asr.interfaces import Tokenizer, TokenModel

# Settings that do not change results. For texts, resume compares tokens, not paths.
FREE = (
    *("run_dir", "resume", "checkpoint", "logger", "recognizer", "text.train", "text.valid", "text.test"),
    *("trainer.devices", "trainer.num_nodes", "trainer.strategy", "trainer.log_every_n_steps"),
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedText:
    """Everything that a run prepares before it creates the model.

    Args:
        state: state of the run.
        tokenizer: tokenizer of the recogniser.
        train: training texts.
        valid: validation texts.
        tests: test texts, by file name, for the perplexity after training.
        extra: data that a checkpoint contains in addition to the weights.
    """

    state: RunState
    tokenizer: "Tokenizer"
    train: TextSet
    valid: Sentences
    tests: dict[str, Sentences]
    extra: dict[str, Any]

    def describe(self, model: "TokenModel", num_parameters: int) -> None:
        """Log the sizes of model and texts, and write the start event."""
        name, sentences = type(model).__name__, self.train.sentences
        logger.info("%s with %s parameters, %d tokens", name, f"{num_parameters:,}", model.vocab_size)
        words, tokens = int(sentences.num_words.sum()), int(sentences.lengths.sum())
        size = f"{words:,} words, {tokens:,} tokens including sentence ends"
        logger.info("%d training sentences: %s; %d validation sentences", len(sentences), size, len(self.valid))
        if self.train.num_dropped:
            logger.warning("dropped %d sentences longer than text.batch_tokens", self.train.num_dropped)
        sizes = num_parameters, model.vocab_size, len(sentences), words, len(self.valid)
        self.state.record_start(TextStarted, name, *sizes)


def prepare_text(settings: LanguageModelSettings, rank: int, world_size: int) -> PreparedText:
    """Open the run folder and read the texts.

    Args:
        settings: settings of the run.
        rank: rank of this process.
        world_size: number of processes.

    Raises:
        InputError: the recogniser, the texts or the folder cannot be used, or an earlier run in the folder has other
            settings.
    """
    run_dir, first = Path(settings.run_dir), rank == 0
    recognizer = read_model(path_of(settings.recognizer))
    tokenizer = build_tokenizer(recognizer.config)
    tokenizer.load(recognizer.files)
    normalize = get_normalizer(recognizer.config["normalizer"])
    read = partial(read_sentences, normalize=normalize, tokenizer=tokenizer)
    train, valid = (
        read(map(Path, paths), setting=setting)
        for setting, paths in (("text.train", settings.text.train), ("text.valid", settings.text.valid))
    )
    tests = {Path(path).stem: read([Path(path)], setting="text.test") for path in settings.text.test} if first else {}
    if first:
        folder.open_run_dir(run_dir)
    resume = find_resume(run_dir / CHECKPOINTS)
    if resume is None and first:
        folder.begin_anew(run_dir)
    compared = {
        **as_mapping(settings),
        "world_size": world_size,
        "manifests": {"train": train.fingerprint, "valid": valid.fingerprint},
        "fitted": {name: hashlib.sha256(file).hexdigest()[:16] for name, file in tokenizer.files().items()},
    }
    changed = changes_but_for(FREE, resume.run.settings, compared) if resume else {}
    state = enter_run(settings, compared, resume, changed, rank, world_size)
    of_bundle = {**recognizer.config, "token_model": settings.components["token_model"]}
    extra = checkpoint_extra(of_bundle, tokenizer.files(), LANGUAGE_MODEL_KEYS)
    train_set = TextSet(train, settings.text, settings.seed)
    return PreparedText(state, tokenizer, train_set, valid, tests, extra)
