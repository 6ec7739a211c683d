"""The sections `corpus` and `data` of the settings of a run."""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from asr.data.batch_plan import BatchBounds, BatchOrder
from asr.data.padded_lengths import PaddedLengths
from asr.data.selection import SelectionBounds
from asr.settings.read import INLINE
from asr.settings.rule import FRACTION, MANIFESTS, PATH, TEXT, WORKERS, Rule, above, list_of, number, one_of, or_null
from asr.storage.location import join, plain
from asr.storage.patterns import expanded
from asr.storage.settings import StorageSettings

TESTS = ("test", "also_test")


class WeightedManifest(NamedTuple):
    """A manifest to train on.

    Args:
        path: or URL.
        weight: how many times each of its utterances occurs in an epoch, at temperature 1.
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
    """Which manifests a run reads, and how they are made where they are absent.

    Args:
        name: of the corpus.
        dir: folder that the paths of manifests are relative to.
        train: manifests or indexes to train on: paths or URLs, which may have wildcards and braces, or mappings of
            `manifest` to one of them and `weight` to how many times each of its utterances occurs in an epoch (1).
        valid: manifests to validate on.
        test: manifests to test on at the end.
        also_test: the same, whose texts the tokenizer of the training texts need not spell.
        prepare: module of recipes/ with its options that makes the corpus in `dir`; None: nothing does.
        temperature: of the shares that the manifests of `train` have of an epoch (`asr.data.mixture.repeats`).
        how_to_prepare: what a message advises where the manifests are absent and `prepare` is None.
    """

    name: Annotated[str, TEXT]
    dir: Annotated[str, PATH]
    train: Annotated[list[str | dict[str, Any]], list_of(MANIFEST_OR_WEIGHTED, WEIGHTED_MANIFESTS, least=1)]
    valid: Annotated[list[str], list_of(PATH, MANIFESTS, least=1)]
    test: Annotated[list[str], list_of(PATH, MANIFESTS)]
    also_test: Annotated[list[str], list_of(PATH, MANIFESTS)]
    prepare: Annotated[str | None, or_null(TEXT)]
    how_to_prepare: Annotated[str | None, or_null(TEXT)] = None
    temperature: Annotated[float, number(0, 10)] = 1.0

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
            for path in expanded(join(self.dir, entry["manifest"]))
        ]


@dataclass(frozen=True)
class PlanSettings:
    """What a training set is chosen by, and its epochs are planned by."""

    batches: Annotated[BatchBounds, INLINE]
    selection: Annotated[SelectionBounds, INLINE]
    order: Annotated[BatchOrder, INLINE]
    lengths: Annotated[PaddedLengths, INLINE]


@dataclass(frozen=True)
class DataSettings:
    """Which utterances are trained on, in which batches, and who reads them.

    Args:
        plan: choice and batches of utterances.
        features_on: cpu: features are computed one by one in the processes that read audio; device: by batch, where
            the net is.
        index_dir: folder that keeps the indexes of manifests and the counts of their tokens, for all processes and
            runs; None: asr/index in the user's cache, $XDG_CACHE_HOME or ~/.cache.
        num_workers: processes that read audio beside the training process; 0: the training process reads it.
        storage: waiting for object stores, and their cache.
        max_dropped_fraction: share of the training utterances that may be dropped because the encoder has fewer frames
            than their text has tokens.
        max_bad_fraction: share of an epoch's utterances that may turn out unreadable before training stops.
    """

    plan: Annotated[PlanSettings, INLINE]
    features_on: Annotated[str, one_of("cpu", "device")]
    index_dir: Annotated[str | None, or_null(PATH)]
    num_workers: Annotated[int, WORKERS]
    storage: Annotated[StorageSettings, INLINE]
    max_dropped_fraction: Annotated[float, FRACTION]
    max_bad_fraction: Annotated[float, FRACTION]
