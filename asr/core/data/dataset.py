"""Conversion of an utterance to an example: load and augment the audio, compute features, tokenise the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from asr.base.audio.load import load_waveform, stream_waveform
from asr.base.storage.location import ByteRange, is_url, printable_url
from asr.base.storage.store import read_files, read_ranges
from asr.base.system.parallel import in_parallel
from asr.base.system.processes import torch_threads
from asr.base.system.seeds import derive_seed, seeded
from asr.core.data.batch import Example, Rejected
from asr.core.data.labels import LANGUAGE, NO_LABELS, Labels
from asr.core.data.manifest import Utterance
from asr.core.data.recordings import RecordingList
from asr.errors import AudioError, InputError, shown
from asr.interfaces import FeatureAugment, Features, WaveformAugment
from asr.lengths import Lengths

ENERGIES_AHEAD = 4  # number of results that a process computes in advance; a result for 10 s of audio takes 0.3 MB
DURATION_TOLERANCE_SECONDS = 0.1  # allowed error of a manifest's duration, in addition to 1 % of it


class Item(NamedTuple):
    """An utterance in the batch plan. It contains the epoch, so that workers need not be notified of a new epoch."""

    epoch: int
    row: int  # position of the utterance in the dataset
    factor: float  # speed factor
    repeat: int = 0  # number of earlier occurrences of the utterance in this epoch


class SpeedPerturbation(Protocol):
    """Change of speed by a factor that the batch plan draws from `factors`."""

    factors: tuple[float, ...]

    def __call__(self, waveform: Tensor, factor: float) -> Tensor: ...
    def num_samples(self, num_samples: Lengths, factor: float) -> Lengths: ...


@dataclass(frozen=True)
class Augmentation:
    """Augmentations of training utterances; by default there are none.

    Args:
        speed: change of speed; the batch plan draws its factors.
        waveform: augmentations of the waveform, applied in this order.
        features: augmentations of the features, applied in this order.
        recordings: lists of recordings to mix into utterances, by the name of the setting that contains their path.
    """

    speed: SpeedPerturbation | None = None
    waveform: Sequence[WaveformAugment] = field(default=())
    features: Sequence[FeatureAugment] = field(default=())
    recordings: Mapping[str, RecordingList] = field(default_factory=dict)

    @property
    def max_added_seconds(self) -> float:
        """The maximum number of seconds that augmentation adds to an utterance."""
        return sum(augment.max_added_seconds for augment in self.waveform)


@dataclass(frozen=True)
class Reference:
    """The conversion of texts to tokens, and a head's requirements on training data (`asr.interfaces.Head`).

    Tokens fit the audio if `output_lengths(frames) >= min_frames(tokens)`. `views` is the number of views of each
    utterance in a batch. `cells` returns the number of elements of the head's largest tensor for one utterance, given
    its numbers of encoder frames and tokens. `labels` are those that the model reads. `tags` maps a language to
    the end of its training texts, such as " <de-DE>"; it is empty if the model writes no tags. `encoders` are those of
    the languages of a `MultilingualTokenizer`; they replace `encode`, if there are any. `end` is the id of the piece
    <EOU>, with which each text ends, if the tokenizer has it.
    """

    encode: Callable[[str], list[int]]
    min_frames: Callable[[list[int]], int]
    output_lengths: Callable[[Any], Any]  # converts numbers of frames to numbers of encoder frames; ints or tensors
    cells: Callable[[Any, Any], Any] = lambda frames, tokens: 0  # arguments: ints or tensors
    views: int = 1
    labels: Labels = NO_LABELS
    tags: Mapping[str, str] = field(default_factory=dict)
    encoders: Mapping[str, Callable[[str], list[int]]] = field(default_factory=dict)
    end: Sequence[int] = ()

    @property
    def reads_language(self) -> bool:
        """Whether the tokens of a text depend on its language."""
        return bool(self.tags or self.encoders)

    def tokens(self, text: str, language: str | None) -> list[int]:
        """Return the tokens of a text, with the tag of its language if it has one, and the end of the utterance.

        Raises:
            InputError: the tokenizer does not cover a character, or each language has a tokenizer, and not this one.
        """
        if self.encoders and language not in self.encoders:
            must = f"each text must have the key {LANGUAGE}, one of {', '.join(self.encoders)}"
            given = "none" if language is None else shown(language)
            raise InputError(f"{must}; got {given}. Add it to the manifests, and give corpus.labels=[{LANGUAGE}]")
        tokens = self.encoders.get(language or "", self.encode)(text + self.tags.get(language or "", ""))
        return [*tokens, *self.end]

    def for_evaluation(self) -> Reference:
        """Return a copy for evaluation, with one view, and without the check that a text fits its audio."""
        return replace(self, min_frames=_no_frames, views=1)


def _no_frames(tokens: list[int]) -> int:
    return 0


class SpeechDataset(Dataset[Example | Rejected]):
    """A dataset that converts utterances to examples, or to `Rejected` if that is impossible.

    An example is a function of (seed, epoch, utterance id, speed factor, repeat); it does not depend on workers, order
    or batches. Its views share the waveform and differ in their masks.

    Args:
        utterances: the utterances, in the order of `Item.row`.
        features: converts a waveform to features.
        reference: converts a text to tokens; None: no reference is needed.
        augmentation: augmentation of the utterances; None: no augmentation, as in evaluation.
        seed: seed of the augmentation.
        load: returns the waveform (S,) of an utterance at a sample rate; None: `load_utterance`.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        features: Features,
        reference: Reference | None = None,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        load: Callable[[Utterance, int], Tensor] | None = None,
    ) -> None:
        self.utterances = utterances
        self.features = features
        self.reference = reference
        self.augmentation = augmentation or Augmentation()
        self.seed = seed
        self.load = load or load_utterance

    def __len__(self) -> int:
        return len(self.utterances)

    def __getitems__(self, items: Sequence[Item]) -> list[Example | Rejected]:
        """Make the examples of a batch; audio in shards and at URLs is fetched concurrently."""
        utterances = [self.utterances[item.row] for item in items]
        return [
            self._made(item, utterance, fetched)
            for item, utterance, fetched in zip(items, utterances, fetch(utterances), strict=True)
        ]

    def __getitem__(self, item: Item) -> Example | Rejected:
        return self.__getitems__([item])[0]

    def _made(self, item: Item, utterance: Utterance, fetched: Utterance) -> Example | Rejected:
        try:
            with torch_threads(1):  # as in a DataLoader's worker; rounding depends on the number of threads
                waveform = self.load(fetched, self.features.sample_rate)
                with seeded(self.seed, item.epoch, utterance.id, *_again(item)):
                    return self._example(utterance, waveform, item)
        except AudioError as error:  # raised for the utterance, or for a recording mixed into it
            return Rejected(utterance, str(error))

    def _example(self, utterance: Utterance, waveform: Tensor, item: Item) -> Example | Rejected:
        features, *views = self._views(waveform, item)
        if self.reference is None:
            return Example(utterance, features, torch.zeros(0, dtype=torch.int64))
        tokens = self.reference.tokens(utterance.text, utterance.labels.get(LANGUAGE))
        needed = self.reference.min_frames(tokens)
        if self.reference.output_lengths(len(features)) < needed and item.factor != 1.0:
            # Use speed 1.0: the plan's factor suits the manifest's duration, but the audio is slightly shorter.
            features, *views = self._views(waveform, item._replace(factor=1.0))
        frames = self.reference.output_lengths(len(features))
        if frames < needed:
            reason = f"the text is too long for its audio: it needs {needed} frames; the audio has {frames}"
            return Rejected(utterance, reason)
        return Example(utterance, features, torch.tensor(tokens, dtype=torch.int64), tuple(views))

    def _views(self, waveform: Tensor, item: Item) -> Iterator[Tensor]:
        """Yield the views of an utterance; each view after the first has its own seed."""
        if self.augmentation.speed is not None:
            waveform = self.augmentation.speed(waveform, item.factor)
        for augment in self.augmentation.waveform:
            waveform = augment(waveform)
        features = self.features(waveform)
        yield self._masked(features)
        for view in range(1, self.reference.views if self.reference else 1):
            with seeded(self.seed, item.epoch, self.utterances[item.row].id, *_again(item), "view", view):
                yield self._masked(features)

    def _masked(self, features: Tensor) -> Tensor:
        for augment in self.augmentation.features:
            features = augment(features)
        return features


def _again(item: Item) -> tuple[str | int, ...]:
    """Return the seed parts that distinguish repetitions of an utterance in an epoch; () for the first occurrence."""
    return ("repeat", item.repeat) if item.repeat else ()


def energies(
    utterances: Sequence[Utterance], features: Features, seed: int, num_processes: int | None = None
) -> Iterator[Tensor]:
    """Yield the features (T, F) of utterances before normalisation, in random order, without unreadable utterances.

    Args:
        utterances: utterances to read.
        features: computes the features.
        seed: seed of the order.
        num_processes: number of processes, as in `in_parallel`; the result does not depend on the number.

    Raises:
        StoreError: a shard or URL cannot be read.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, "energies"))
    order = torch.randperm(len(utterances), generator=generator)

    # Processes return arrays, because each tensor from another process would need a file descriptor.
    def energies_at(index: int) -> np.ndarray | None:
        try:
            return features.energies(load_utterance(utterances[int(order[index])], features.sample_rate)).numpy()
        except AudioError:
            return None  # reported when an epoch reads the utterance

    results = in_parallel(energies_at, range(len(order)), num_processes=num_processes, results_ahead=ENERGIES_AHEAD)
    yield from (torch.from_numpy(result) for result in results if result is not None)


def load_utterance(utterance: Utterance, sample_rate: int) -> Tensor:
    """Load an utterance's waveform (S,).

    Raises:
        AudioError: the audio is unreadable, or its duration differs from the duration in the manifest, which the batch
            plan uses.
        StoreError: a shard or URL cannot be read.
    """
    [utterance] = fetch([utterance])
    path, (offset, duration) = utterance.audio_filepath, _segment(utterance)
    waveform = load_waveform(path, sample_rate, offset=offset, duration=duration, content=utterance.content)
    _check_duration(utterance, len(waveform) / sample_rate)
    return waveform


def fetch(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Fetch audio in shards and at URLs concurrently; return the utterances with this audio as `content`.

    Raises:
        StoreError: a shard or URL cannot be read.
    """
    missing = [utterance for utterance in utterances if utterance.content is None]
    ranges = [ByteRange(each.audio_filepath, *each.extent) for each in missing if each.extent is not None]
    urls = [each.audio_filepath for each in missing if each.extent is None and is_url(each.audio_filepath)]
    extents, files = iter(read_ranges(ranges)), iter(read_files(urls))
    fetched = []
    for utterance in utterances:
        if utterance.content is None and utterance.extent is not None:
            utterance = replace(utterance, content=next(extents))
        elif utterance.content is None and is_url(utterance.audio_filepath):
            utterance = replace(utterance, content=next(files))
        fetched.append(utterance)
    return fetched


def stream_utterance(utterance: Utterance, sample_rate: int) -> Iterator[Tensor]:
    """Yield an utterance's waveform in blocks, each (S,); raise the errors of `load_utterance`."""
    [utterance] = fetch([utterance])
    num_samples, (offset, duration) = 0, _segment(utterance)
    for block in stream_waveform(
        utterance.audio_filepath, sample_rate, offset=offset, duration=duration, content=utterance.content
    ):
        num_samples += len(block)
        yield block
    _check_duration(utterance, num_samples / sample_rate)


def _segment(utterance: Utterance) -> tuple[float | None, float | None]:
    """Return offset and duration of the utterance in its audio file; (None, None): the whole file."""
    is_whole = utterance.offset is None or utterance.extent is not None
    return (None, None) if is_whole else (utterance.offset, utterance.duration)


def is_as_long(utterance: Utterance, actual: float) -> bool:
    """Return whether the actual duration, in seconds, agrees with the duration in the manifest."""
    return abs(actual - utterance.duration) <= DURATION_TOLERANCE_SECONDS + 0.01 * utterance.duration


def _check_duration(utterance: Utterance, actual: float) -> None:
    if not is_as_long(utterance, actual):
        given = f"the manifest has {utterance.duration:.2f} s, the audio {actual:.2f} s (id {utterance.id!r})"
        raise AudioError(f"{printable_url(utterance.audio_filepath)}: duration must be that of the audio; {given}.")
