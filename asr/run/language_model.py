"""Start and end of a language model's run: folder, tokenized texts, checkpoint; bundle and perplexity per word."""

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.build import build_tokenizer, load_token_model
from asr.checkpoint.language_model import LANGUAGE_MODEL_KEYS, write_language_model
from asr.checkpoint.load import BUNDLE, checkpoint_extra, read_model
from asr.checkpoint.saved import CHECKPOINTS, intact_checkpoints, select
from asr.data.text_set import Sentences, TextSet, read_sentences
from asr.evaluation.text_perplexity import TextPerplexity, measure
from asr.interchange.hub import path_of
from asr.run import folder
from asr.run.events import Bundled, EventsFile, TextStarted
from asr.run.language_model_settings import LanguageModelSettings
from asr.run.names import RESULTS
from asr.run.provenance import provenance
from asr.run.resume import changes_but_for, find_resume
from asr.run.run_state import RunState, enter_run
from asr.settings.read import as_mapping
from asr.system.files import write_whole_text
from asr.text.normalize import get_normalizer
from asr.text.printable import printable

if TYPE_CHECKING:
    from asr.interfaces import Tokenizer, TokenModel

# Settings that do not change results. For texts, resume compares tokens, not paths.
FREE = (
    *("run_dir", "resume", "checkpoint", "logger", "recognizer", "text.train", "text.valid", "text.test"),
    *("trainer.devices", "trainer.num_nodes", "trainer.strategy", "trainer.log_every_n_steps"),
)

logger = logging.getLogger(__name__)

_CARD = """# {name}

A neural language model over the tokens of a recogniser, trained by `python -m asr.train_lm`.

| | |
|---|---|
| network | {net} |
| recogniser | {recognizer} |
| trained on | {words:,} words |
| weights | {select} of the run: {checkpoints} |
{origin}
"""


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


def finish_language_model(
    settings: LanguageModelSettings, prepared: PreparedText, device: Any
) -> dict[str, TextPerplexity]:
    """Write the bundle and measure its perplexity on validation and test texts.

    Args:
        settings: settings of the run.
        prepared: the run's folder, texts and tokenizer.
        device: device on which the perplexity is computed.
    """
    run_dir = prepared.state.run_dir
    checkpoints = intact_checkpoints(run_dir / CHECKPOINTS)
    chosen = select(settings.checkpoint.select, checkpoints, settings.checkpoint.keep)
    origin = {name: line for name, line in asdict(provenance()).items() if name != "command"}
    card = _CARD.format(
        name=run_dir.name,
        net=settings.components["token_model"]["name"],
        recognizer=printable(settings.recognizer),
        words=int(prepared.train.sentences.num_words.sum()),
        select=settings.checkpoint.select,
        checkpoints=", ".join(checkpoint.path.stem for checkpoint in chosen),
        origin="".join(f"| {name} | {printable(line)} |\n" for name, line in origin.items()),
    )
    write_language_model(run_dir / BUNDLE, [checkpoint.path for checkpoint in chosen], card)
    logger.info("bundle written to %s", run_dir / BUNDLE)
    EventsFile(run_dir).append(Bundled())
    model: Any = load_token_model(str(run_dir / BUNDLE), prepared.tokenizer, "run_dir")
    texts = {"valid": prepared.valid, **prepared.tests}
    results = {}
    for name, text in texts.items():
        logger.info("measuring the bundle on %s", name)
        results[name] = measure(model.to(device), text, settings.text.bounds, device)
        logger.info("%s: %s", name, results[name].summary())
    content = {name: result.as_dict() for name, result in results.items()}
    write_whole_text(run_dir / RESULTS, json.dumps(content, indent=2) + "\n")
    return results
