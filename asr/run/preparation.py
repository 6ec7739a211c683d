"""Start of a run: folder, corpus, fitted tokenizer and features, and the checkpoint to resume from."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr.build import build_augmentation
from asr.checkpoint.adapted import ADAPTER, base_config
from asr.checkpoint.bundle import check_attachable
from asr.checkpoint.load import CHECKPOINTS, checkpoint_extra, fitted_files
from asr.checkpoint.saved import put_aside
from asr.data.corpus import Corpus, prepare_if_absent, read_corpus
from asr.data.fingerprint import fingerprint, mixture_of, stored_fingerprint
from asr.data.index_cache import IndexCache
from asr.data.position import Position, start_of_epoch
from asr.data.token_counts import TokenCounts, stored_counts
from asr.run import folder
from asr.run.adaptation import check_base, own_tensors
from asr.run.events import EventsFile, Started
from asr.run.initialization import Initialization, start_of
from asr.run.names import EXAMPLES, FAULTS
from asr.run.provenance import provenance
from asr.run.resume import Resume, Run, begun_or_resumed, changes, check_allowed, find_resume, run_settings
from asr.run.settings import RunSettings
from asr.run.validation_samples import SamplesFile, choose_samples
from asr.settings.read import as_mapping
from asr.text.normalize import get_normalizer

if TYPE_CHECKING:
    from asr.data.dataset import Augmentation
    from asr.data.manifest import Utterance
    from asr.data.training_set import RunBounds, TrainingSet
    from asr.interfaces import Features, Tokenizer
    from asr.recognition.model import Model

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Everything that is prepared before the model is made.

    Args:
        run_dir: the run folder.
        writes: whether this is the first process; only it writes to the run folder.
        corpus: to train on.
        tokenizer: fitted.
        features: fitted.
        augmentation: of the training utterances.
        extra: stored in a checkpoint beside the weights.
        position: in the training data.
        settings: values that must not change when the run is resumed.
        resume: the checkpoint to resume from; None in a new run.
        changed: whether the run is resumed with changed settings.
        start: the initial model; None: random weights.
    """

    run_dir: Path
    writes: bool
    corpus: Corpus
    tokenizer: "Tokenizer"
    features: "Features"
    augmentation: "Augmentation"
    extra: dict[str, Any]
    position: Position
    settings: dict[str, Any]
    resume: Resume | None
    changed: bool
    start: Initialization | None

    @property
    def faults(self) -> Path:
        """The folder for batches whose loss is not finite."""
        return self.run_dir / FAULTS

    @property
    def step(self) -> int:
        """Completed optimizer steps."""
        return self.resume.step if self.resume else 0

    def initialize(self, model: "Model") -> frozenset[str] | None:
        """Load the initial model's weights, if there is one, into a new model.

        Returns:
            Names of the tensors that a checkpoint contains; None: all.

        Raises:
            InputError: the weights do not fit.
        """
        if self.start is not None:
            self.start.load(model)
        if self.start is None or ADAPTER not in self.settings:
            return None
        own = own_tensors(model)
        check_base(model, own, self.start.bundle.weights, self.start.source)
        return own

    def describe(self, model: "Model", corpus: Corpus, training_set: "TrainingSet") -> None:
        """Log the sizes of model and corpus, and the run's provenance.

        Args:
            model: to train.
            corpus: the utterances in use; with `debug.same_utterances` a few of those in the manifests.
            training_set: made from `corpus`.
        """
        parameters = sum(parameter.numel() for parameter in model.parameters())
        hours = corpus.train.hours
        name, tokens = type(model.encoder).__name__, model.tokenizer.vocab_size
        logger.info("%s with %s parameters, %d tokens", name, f"{parameters:,}", tokens)
        whole = self.corpus.train
        logger.info("%d training utterances in the manifests, %.2f h", len(whole), whole.hours)
        if corpus is not self.corpus:
            logger.info("debug.same_utterances: trains and validates on %d, %.2f h", len(corpus.train), hours)
        else:
            logger.info("%d validation utterances", len(corpus.valid))
        for line in training_set.describe_mixture():
            logger.info("%s", line.strip())
        corpus.note_conversion(model.features.sample_rate)
        if self.writes:
            origin = asdict(provenance())
            for key, line in origin.items():
                logger.info("%s: %s", key, line)
            sizes = parameters, tokens, len(corpus.train), hours, len(corpus.valid)
            EventsFile(self.run_dir).append(Started(self.step, name, *sizes, **origin))

    def run(self, training_set: "TrainingSet", bounds: "RunBounds") -> Run:
        """Return the record of the run that each checkpoint contains; a resumed run keeps its id.

        Args:
            training_set: of the run.
            bounds: at which the run ends.
        """
        count = partial(training_set.total_steps, self.position, self.step, bounds)
        return begun_or_resumed(self.settings, self.resume, self.changed, count)

    def validation_samples(self, utterances: "Sequence[Utterance]") -> SamplesFile:
        """Open the file of validation samples; remove samples of validations that will be repeated."""
        samples = SamplesFile(self.run_dir / EXAMPLES, choose_samples(utterances))
        if self.writes:
            samples.cut(self.step)
        return samples


def training_counts(settings: RunSettings, corpus: Corpus, model: "Model") -> TokenCounts:
    """Count the tokens of the training texts, or read stored counts; check that the tokenizer covers all texts.

    Raises:
        InputError: the tokenizer cannot encode a text; it names split, utterance and character.
    """
    files = fitted_files(model.tokenizer, model.features)
    learnt = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    parts = [settings.components[group] for group in ("normalizer", "tokenizer", "head")]
    counts = stored_counts(corpus.train, model.reference, IndexCache(settings.data.index_dir), repr((parts, learnt)))
    corpus.check_coverage(model.reference)
    return counts


def prepare(settings: RunSettings, rank: int, world_size: int) -> Prepared:
    """Open the run folder, read the corpus, fit the tokenizer; other processes than the first read its files.

    Args:
        settings: of the run.
        rank: of this process.
        world_size: number of processes.

    Raises:
        InputError: the corpus, the folder or an earlier run in it does not allow the run.
    """
    run_dir, first, components = Path(settings.run_dir), rank == 0, settings.components
    check_attachable(components)  # refused before training: a bundle could not contain them
    if first:
        prepare_if_absent(settings.corpus)
        folder.open_run_dir(run_dir)
    cache = IndexCache(settings.data.index_dir)
    corpus = read_corpus(
        settings.corpus, get_normalizer(components["normalizer"]), cache.utterances, cache.with_known_ids
    )
    corpus.check_shards()
    resume = find_resume(run_dir / CHECKPOINTS)
    if resume is None and first:
        corpus.check_audio()  # a resumed run skips files that have disappeared, as the original run would have
        folder.begin_anew(run_dir)
    start = start_of(settings.init)
    tokenizer, features = folder.fitted_front_end(settings, corpus, first, start)
    files = fitted_files(tokenizer, features)
    compared = files | ({"init.from": start.fingerprint} if start else {})
    augmentation = build_augmentation(components, features.sample_rate)
    normalizer = repr(components["normalizer"])
    manifests = {
        "train": stored_fingerprint(corpus.train, cache, normalizer),
        "valid": stored_fingerprint(corpus.valid, cache, normalizer),
        **mixture_of(corpus.train),
        **{name: fingerprint(recordings.utterances) for name, recordings in augmentation.recordings.items()},
    }
    compared_settings = run_settings(as_mapping(settings), manifests, compared, world_size)
    changed = changes(resume.run.settings, compared_settings) if resume else {}
    if first:
        check_allowed(changed, run_dir, settings.resume.allow)
        put_aside(resume.damaged if resume else {})
        folder.save_config(run_dir, as_mapping(settings))
    position = resume.position.on(world_size) if resume else start_of_epoch(0, world_size)
    base = base_config(start.fingerprint, start.source) if start and ADAPTER in components else None
    extra = checkpoint_extra(components, files, base=base)
    return Prepared(
        *(run_dir, first, corpus, tokenizer, features, augmentation, extra, position, compared_settings, resume),
        *(bool(changed), start),
    )
