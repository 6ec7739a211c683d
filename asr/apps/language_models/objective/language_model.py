"""Training of a language model: losses and perplexity of texts, a bundle whose perplexity is measured."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from asr.apps.language_models.bundle import LANGUAGE_MODEL_KEYS, write_language_model
from asr.apps.language_models.text_perplexity import measure
from asr.apps.language_models.text_set import Sentences, TextBatch, TextSet, TextSettings, read_sentences
from asr.base.kernels.choice import exact
from asr.base.language_model.token_scores import text_log_probs
from asr.base.settings.read import read
from asr.base.settings.rule import TEXT
from asr.base.system.files import write_whole_text
from asr.base.text.normalize import get_normalizer
from asr.core import build
from asr.core.checkpoint.load import checkpoint_extra, read_model
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.dataset import Item
from asr.core.data.epoch_plan import Epochs
from asr.core.data.position import Position
from asr.core.evaluation.perplexity import of_loss
from asr.core.hub.download import path_of
from asr.core.run.names import RESULTS
from asr.core.run.run import Run
from asr.core.run.run_bundle import write_run_bundle
from asr.core.run.settings import TrainingSettings
from asr.core.training.data_module import TrainingData
from asr.core.training.losses import Losses
from asr.core.training.objective import PERPLEXITY, Built, FindBatchSeconds, Measure, Processes, Rate
from asr.interfaces import Tokenizer, TokenModel

logger = logging.getLogger(__name__)


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
class TextInputs:
    """The texts of a run.

    Args:
        tokenizer: tokenizer of the recogniser.
        train: training texts.
        valid: validation texts.
        tests: test texts, by file name, for the perplexity after training; {} except in the first process.
    """

    tokenizer: Tokenizer
    train: TextSet
    valid: Sentences
    tests: dict[str, Sentences]


class TextData(TrainingData):
    """Training and validation batches of texts. All texts are in memory, so there are no worker processes.

    Args:
        train: training texts and their batch plan.
        valid: validation texts.
        bounds: limits of the size of validation batches.
        position: position at which the run starts or resumes.
    """

    def __init__(self, train: TextSet, valid: Sentences, bounds: BatchBounds, position: Position) -> None:
        self._sentences, self._valid_sentences, self._bounds = train.sentences, valid, bounds
        epochs = Epochs(train.epoch, len(train), position)
        super().__init__(epochs, _Rows(len(train)), _Rows(len(valid)), train.sentences.batch, valid.batch)

    def validation_batches(self, rank: int, world_size: int) -> list[list[int]]:
        """Plan the batches of a validation; return this rank's."""
        return self._valid_sentences.batches(self._bounds, rank, world_size)

    def made_up(self, steps: Sequence[list[Item]]) -> list[TextBatch]:
        """Return the batches of these items."""
        return [self._sentences.batch([item.row for item in items]) for items in steps]


class _Rows(Dataset[int]):
    """Rows of sentences; `Sentences.batch` makes a batch from a list of rows.

    Args:
        number: number of sentences.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return self._number

    def __getitem__(self, item: Item) -> int:
        return item.row


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
    own_tensors: Collection[str] | None = None
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

    command: ClassVar[str] = "train_lm"
    measure: ClassVar[Measure] = PERPLEXITY
    sections: ClassVar[Sequence[str]] = ("token_model",)
    optional: ClassVar[Sequence[str]] = ()

    def read(self, resolved: Mapping[str, Any], overrides: Sequence[str]) -> LanguageModelSettings:
        """Read the settings of conf/train_lm.yaml."""
        return read(LanguageModelSettings, resolved)

    def check(self, components: Mapping[str, Any]) -> None:
        """Check the settings of all components before a training begins."""
        with torch.device("meta"):
            model: Any = build.build_token_model(components["token_model"], 1)
        build.check_training(components, model, {})

    def prepare(
        self, run: Run[LanguageModelSettings], find_batch_seconds: FindBatchSeconds | None
    ) -> tuple[Run[LanguageModelSettings], TextInputs]:
        """Read the texts."""
        settings = run.settings
        recognizer = read_model(path_of(settings.recognizer))
        tokenizer = build.build_tokenizer(recognizer.config)
        tokenizer.load(recognizer.files)
        normalize = get_normalizer(recognizer.config["normalizer"])
        sentences = partial(read_sentences, normalize=normalize, tokenizer=tokenizer)
        train = sentences(map(Path, settings.text.train), setting="text.train")
        valid = sentences(map(Path, settings.text.valid), setting="text.valid")
        given = settings.text.test if run.is_first else []
        tests = {Path(path).stem: sentences([Path(path)], setting="text.test") for path in given}
        run.begin()
        of_bundle = {**recognizer.config, "token_model": settings.components["token_model"]}
        files = tokenizer.files()
        manifests = {"train": train.fingerprint, "valid": valid.fingerprint}
        run = run.enter(manifests, files, checkpoint_extra(of_bundle, files, LANGUAGE_MODEL_KEYS))
        return run, TextInputs(tokenizer, TextSet(train, settings.text, settings.seed), valid, tests)

    def build(self, run: Run[LanguageModelSettings], texts: TextInputs) -> Built[TextInputs]:
        """Make the model."""
        settings, train, valid = run.settings, texts.train, texts.valid
        model = build.build_token_model(settings.components["token_model"], texts.tokenizer.vocab_size)
        trainable = TrainableTokenModel(model)
        num_parameters = sum(parameter.numel() for parameter in trainable.model.parameters())
        name, sentences = type(model).__name__, train.sentences
        logger.info("%s with %s parameters, %d tokens", name, f"{num_parameters:,}", model.vocab_size)
        words, tokens = int(sentences.num_words.sum()), int(sentences.lengths.sum())
        size = f"{words:,} words, {tokens:,} tokens including sentence ends"
        logger.info("%d training sentences: %s; %d validation sentences", len(sentences), size, len(valid))
        if train.num_dropped:
            logger.warning("dropped %d sentences longer than text.batch_tokens", train.num_dropped)
        sizes = {"parameters": num_parameters, "tokens": model.vocab_size}
        run.record_start(name, sizes, {"sentences": len(sentences), "words": words}, {"sentences": len(valid)})
        return Built(trainable, TextData(train, valid, settings.text.bounds, run.position), [], texts)

    def finish(self, run: Run[LanguageModelSettings], texts: TextInputs, device: torch.device) -> None:
        """Write the bundle and measure its perplexity on validation and test texts."""
        settings = run.settings
        rows = {
            "network": settings.components["token_model"]["name"],
            "recogniser": settings.recognizer,
            "trained on": f"{int(texts.train.sentences.num_words.sum()):,} words",
        }
        what = "A neural language model over the tokens of a recogniser,"
        bundle = write_run_bundle(settings, write_language_model, what, rows, {})
        model: Any = build.load_token_model(str(bundle), texts.tokenizer, "run_dir")
        results = {}
        for name, text in {"valid": texts.valid, **texts.tests}.items():
            logger.info("measuring the bundle on %s", name)
            result = measure(model.to(device), text, settings.text.bounds, device)
            logger.info("%s: %s", name, result.summary())
            results[name] = result.as_dict()
        write_whole_text(run.dir / RESULTS, json.dumps(results, indent=2) + "\n")
