"""The sections `corpus` and `data` of a run's settings."""

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from asr.base.settings.read import INLINE
from asr.base.settings.rule import (
    FOLDER,
    FRACTION,
    LABELS,
    MANIFESTS,
    PATH,
    TEXT,
    WORKERS,
    Rule,
    above,
    list_of,
    number,
    one_of,
    or_null,
)
from asr.base.storage.location import plain
from asr.base.storage.patterns import expanded
from asr.base.storage.settings import StorageSettings
from asr.core.data.batch_plan import BatchBounds, BatchOrder
from asr.core.data.selection import SelectionBounds

TESTS = ("test", "also_test")


class WeightedManifest(NamedTuple):
    """A manifest to train on.

    Args:
        path: path or URL.
        weight: number of times that each of its utterances occurs in an epoch, at temperature 1.
    """

    path: str
    weight: float


def _is_manifest(value: Any) -> bool:
    if not isinstance(value, dict):
        return PATH.holds(value)
    is_known = value.keys() <= {"manifest", "weight"} and PATH.holds(value.get("manifest"))
    return is_known and WEIGHT.holds(value.get("weight", 1))


WEIGHT = above(0, 1_000)
MANIFEST_OR_WEIGHTED = Rule("a path, or a mapping of manifest and weight", _is_manifest)
WEIGHTED_MANIFESTS = f"{MANIFESTS} or [{{manifest: a.jsonl, weight: 2}}, b.jsonl], weights above 0 and at most 1000"


@dataclass(frozen=True)
class CorpusSettings:
    """The manifests of a run, and how absent manifests are prepared.

    Args:
        name: name of the corpus.
        dir: folder to which paths of manifests are relative; wildcards and braces in its own name have no meaning.
        train: training manifests or indexes. An entry is a path or URL, which may have wildcards and braces, or a
            mapping with the keys `manifest` (a path or URL) and `weight` (default 1), as in `WeightedManifest`.
        valid: validation manifests; []: no validation.
        test: manifests of the utterances that a trained model is tested on.
        also_test: further test manifests, whose texts the tokenizer need not cover.
        prepare: module of recipes/, with its options, that makes the corpus in `dir`; None: no module.
        labels: further keys of manifest lines that are read as labels of the utterances, such as `language`.
        temperature: exponent of the training manifests' shares of an epoch (`asr.core.data.mixture.repeats`).
        how_to_prepare: advice to the user if manifests are absent and `prepare` is None.
    """

    name: Annotated[str, TEXT]
    dir: Annotated[str, PATH]
    train: Annotated[list[str | dict[str, Any]], list_of(MANIFEST_OR_WEIGHTED, WEIGHTED_MANIFESTS, least=1)]
    valid: Annotated[list[str], list_of(PATH, MANIFESTS)]
    test: Annotated[list[str], list_of(PATH, MANIFESTS)]
    also_test: Annotated[list[str], list_of(PATH, MANIFESTS)]
    prepare: Annotated[str | None, or_null(TEXT)]
    how_to_prepare: Annotated[str | None, or_null(TEXT)] = None
    temperature: Annotated[float, number(0, 10)] = 1.0
    labels: Annotated[list[str], LABELS] = field(default_factory=list)

    def manifests(self, split: str) -> list[str]:
        """Return the paths or URLs of a split's manifests: train, valid, test or also_test."""
        return [weighted.path for weighted in self.weighted(split)]

    def weighted(self, split: str) -> list[WeightedManifest]:
        """Return the manifests of a split with their weights.

        Raises:
            StoreError: a URL with wildcards cannot be listed.
        """
        entries = [entry if isinstance(entry, dict) else {"manifest": entry} for entry in getattr(self, split)]
        return [
            WeightedManifest(plain(path), float(entry.get("weight", 1)))
            for entry in entries
            for path in expanded(entry["manifest"], self.dir)
        ]


@dataclass(frozen=True)
class PlanSettings:
    """Settings of the selection and of the batch plan of a training set."""

    batches: Annotated[BatchBounds, INLINE]
    selection: Annotated[SelectionBounds, INLINE]
    order: Annotated[BatchOrder, INLINE]


@dataclass(frozen=True)
class DataSettings:
    """Selection, batches and loading of utterances.

    Args:
        plan: selection and batches of utterances.
        step_seconds: maximum size of an optimizer step in seconds, over all processes and accumulated batches, with
            padding; None: `batch_seconds` times processes times `trainer.accumulate_grad_batches`.
        features_on: where features are computed. cpu: in worker processes, one utterance at a time; device: on the
            model's device, one batch at a time.
        index_dir: folder of indexes of manifests and of token counts, shared by all processes and runs; None: asr/index
            in the user's cache, $XDG_CACHE_HOME or ~/.cache.
        num_workers: number of worker processes that read audio for each training process; 0: the training process reads
            it; None: as many as the cores allow (`asr.base.system.processes.workers_beside`).
        storage: timeouts and cache of object stores.
        max_dropped_fraction: maximum fraction of training utterances dropped because their tokens do not fit the
            encoder's frames.
        max_bad_fraction: maximum fraction of unreadable utterances in an epoch; a larger fraction stops the run.
    """

    plan: Annotated[PlanSettings, INLINE]
    step_seconds: Annotated[float | None, or_null(above(0))]
    features_on: Annotated[str, one_of("cpu", "device")]
    index_dir: Annotated[str | None, or_null(FOLDER)]
    num_workers: Annotated[int | None, or_null(WORKERS)]
    storage: Annotated[StorageSettings, INLINE]
    max_dropped_fraction: Annotated[float, FRACTION]
    max_bad_fraction: Annotated[float, FRACTION]
