"""Training of a language model: losses and perplexity of texts, a bundle whose perplexity is measured."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from asr.base.kernels.choice import exact
from asr.base.language_model.token_scores import text_log_probs
from asr.base.settings.read import as_mapping
from asr.base.settings.rule import TEXT
from asr.base.system.files import write_whole_text
from asr.base.text.normalize import get_normalizer
from asr.base.text.printable import printable
from asr.core.build import build_token_model, build_tokenizer, check_token_model, load_token_model
from asr.core.checkpoint.language_model import LANGUAGE_MODEL_KEYS, write_language_model
from asr.core.checkpoint.load import BUNDLE, checkpoint_extra, read_model
from asr.core.checkpoint.saved import CHECKPOINTS, intact_checkpoints, select
from asr.core.data.text_set import Sentences, TextBatch, TextSet, TextSettings, read_sentences
from asr.core.evaluation.perplexity import of_loss
from asr.core.evaluation.text_perplexity import TextPerplexity, measure
from asr.core.hub.download import path_of
from asr.core.objective.parts import PERPLEXITY, Losses, Measure, Processes, Rate, TrainedData
from asr.core.run import folder
from asr.core.run.events import Bundled, EventsFile
from asr.core.run.names import RESULTS
from asr.core.run.provenance import provenance
from asr.core.run.resume import changes_but_for, find_resume
from asr.core.run.run_state import PreparedRun, enter_run
from asr.core.run.settings import TrainingSettings
from asr.interfaces import TokenModel

if TYPE_CHECKING:
    from asr.interfaces import Tokenizer
# Settings that do not change results. For texts, resume compares tokens, not paths.
FREE = (
    *("run_dir", "resume", "checkpoint", "logger", "recognizer", "text.train", "text.valid", "text.test"),
    *("trainer.devices", "trainer.num_nodes", "trainer.strategy", "trainer.log_every_n_steps"),
)

OLDER = {"objective": {"name": "language_model"}}  # sections that runs of earlier versions lack

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
class LanguageModelSettings(TrainingSettings):
    """All settings of a language model's training, conf/train_lm.yaml; the others are those of `TrainingSettings`.

    Args:
        text: section.
        recognizer: recogniser whose normaliser and tokenizer convert the texts to tokens.
    """

    text: TextSettings
    recognizer: Annotated[str, TEXT]


@dataclass(frozen=True)
class PreparedText(PreparedRun):
    """Everything that a language model's run prepares before it creates the model.

    Args:
        tokenizer: tokenizer of the recogniser.
        train: training texts.
        valid: validation texts.
        tests: test texts, by file name, for the perplexity after training.
    """

    settings: LanguageModelSettings
    tokenizer: "Tokenizer"
    train: TextSet
    valid: Sentences
    tests: dict[str, Sentences]

    def describe(self, model: TokenModel, num_parameters: int) -> None:
        """Log the sizes of model and texts, and write the start event."""
        name, sentences = type(model).__name__, self.train.sentences
        logger.info("%s with %s parameters, %d tokens", name, f"{num_parameters:,}", model.vocab_size)
        words, tokens = int(sentences.num_words.sum()), int(sentences.lengths.sum())
        size = f"{words:,} words, {tokens:,} tokens including sentence ends"
        logger.info("%d training sentences: %s; %d validation sentences", len(sentences), size, len(self.valid))
        if self.train.num_dropped:
            logger.warning("dropped %d sentences longer than text.batch_tokens", self.train.num_dropped)
        sizes = {"parameters": num_parameters, "tokens": model.vocab_size}
        self.state.record_start(
            name, sizes, {"sentences": len(sentences), "words": words}, {"sentences": len(self.valid)}
        )


@dataclass(frozen=True)
class TextToTrain(TrainedData):
    """Texts to train on.

    Args:
        valid: validation texts.
    """

    train: TextSet
    valid: Sentences


class TextValidation:
    """Sums of a validation in one process.

    Args:
        model: the language model.
    """

    def __init__(self, model: TokenModel) -> None:
        self._model = model
        self._sums: list[Tensor] = []  # loss, tokens and words of a batch, including the ends of sentences

    def add(self, batch: TextBatch) -> None:
        """Add a batch."""
        if not len(batch):
            return
        loss = -text_log_probs(self._model, batch.tokens, batch.token_lengths)
        loss = loss.to(exact(loss.device)).sum()
        counts = batch.token_lengths.sum() + len(batch), batch.num_words.sum() + len(batch)
        self._sums.append(torch.stack([loss, *(count.to(loss.dtype) for count in counts)]))

    def metrics(self, processes: Processes) -> dict[str, float]:
        """Return perplexity and loss: sums over all processes, divided once."""
        own = torch.zeros(3, dtype=exact(processes.device), device=processes.device)
        loss, tokens, words = processes.add_up(torch.stack([own, *self._sums]).sum(dim=0)).tolist()
        return {PERPLEXITY.name: of_loss(loss / words), "loss": loss / tokens}


class TrainableTokenModel:
    """A language model with the cross-entropy of each sentence, per token, including its end.

    Args:
        model: the model to train.
    """

    loss_names: Sequence[str] = ()
    rate = Rate("tokens", "tokens", 1.0)
    own_tensors = None
    blocks: Sequence[nn.Module] = ()
    depths: Mapping[str, int] = {}

    def __init__(self, model: TokenModel) -> None:
        self.model = cast(nn.Module, model)
        self._model = model

    def losses(self, batch: TextBatch) -> Losses:
        """Compute the loss of each sentence, (B,)."""
        return Losses({"loss": -text_log_probs(self._model, batch.tokens, batch.token_lengths)}, batch.sizes)

    def idle(self) -> Tensor:
        """Return a zero, (1,), that depends on every weight."""
        return torch.stack([weight.sum() for weight in self.model.parameters()]).sum()[None] * 0.0

    def too_large(self, batch: TextBatch | None) -> str:
        """Return the error message for a batch that does not fit into memory."""
        shape = "a batch that does not fit"
        if batch is not None:
            shape = "{} sentences of {} tokens".format(*batch.tokens.shape)
        return f"a batch must fit into memory; got {shape}. Lower text.batch_tokens."

    def validation(self, step: int, epoch: int) -> TextValidation:
        """Begin a validation."""
        return TextValidation(self._model)


class LanguageModel:
    """The objective of a neural language model over a recogniser's tokens; the measure is the perplexity per word."""

    measure: ClassVar[Measure] = PERPLEXITY
    sections: ClassVar[Sequence[str]] = ("token_model",)
    optional: ClassVar[Sequence[str]] = ()

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components before a training begins."""
        check_token_model(components)

    def prepare(
        self, settings: LanguageModelSettings, rank: int, world_size: int, find_batch_seconds: Any
    ) -> PreparedText:
        """Open the run folder and read the texts."""
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
        tests = (
            {Path(path).stem: read([Path(path)], setting="text.test") for path in settings.text.test} if first else {}
        )
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
        changed = changes_but_for(FREE, {**OLDER, **resume.run.settings}, compared) if resume else {}
        state = enter_run(settings, compared, resume, changed, rank, world_size)
        of_bundle = {**recognizer.config, "token_model": settings.components["token_model"]}
        extra = checkpoint_extra(of_bundle, tokenizer.files(), LANGUAGE_MODEL_KEYS)
        train_set = TextSet(train, settings.text, settings.seed)
        return PreparedText(settings, state, extra, tokenizer, train_set, valid, tests)

    def build(self, prepared: PreparedText) -> tuple[TrainableTokenModel, TextToTrain]:
        """Make the model."""
        model: Any = build_token_model(prepared.settings.components["token_model"], prepared.tokenizer.vocab_size)
        prepared.describe(model, sum(parameter.numel() for parameter in model.parameters()))
        return TrainableTokenModel(model), TextToTrain(prepared.train, 0.0, prepared.valid)

    def finish(self, prepared: PreparedText, data: TextToTrain, device: Any) -> dict[str, TextPerplexity]:
        """Write the bundle and measure its perplexity on validation and test texts."""
        settings, run_dir = prepared.settings, prepared.state.run_dir
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
