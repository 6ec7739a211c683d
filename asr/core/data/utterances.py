"""Utterances as a sequence over the rows of indexes; `Utterance` objects are made on access."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import overload

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from asr.base.storage.location import join
from asr.core.data.index import LABEL, Index, decoded, record_batches
from asr.core.data.manifest import Utterance


@dataclass(frozen=True)
class Part:
    """An index of a corpus.

    Args:
        index: the rows.
        folder: path or URL to which audio paths are relative.
        name: name of the manifest, for messages and for sums per manifest.
        prefix: prefix of ids, if an earlier part has equal ids; empty: ids are not changed.
        repeats: mean number of occurrences of an utterance in a training epoch.
    """

    index: Index
    folder: str
    name: str = ""
    prefix: str = ""
    repeats: float = 1.0


class Utterances(Sequence[Utterance]):
    """Rows of one or more indexes, in order.

    Args:
        parts: the indexes; row numbers continue from part to part.
        rows: selected row numbers, ascending, (N,) int64; None: all rows.
        normalize: text normaliser; None: texts are not changed.
    """

    def __init__(
        self, parts: Sequence[Part], rows: np.ndarray | None = None, normalize: Callable[[str], str] | None = None
    ) -> None:
        self.parts = list(parts)
        self._ends = list(accumulate(part.index.num_rows for part in self.parts))
        self._rows = rows
        self._normalize = normalize

    @classmethod
    def of(cls, utterances: Sequence[Utterance]) -> Utterances:
        """Convert a sequence of utterances to columns in memory; an `Utterances` is returned unchanged."""
        if isinstance(utterances, Utterances):
            return utterances
        labels = sorted({label for utterance in utterances for label in utterance.labels})
        return cls([Part(Index(list(record_batches(utterances, labels))), "")])

    @classmethod
    def joined(cls, several: Sequence[Utterances]) -> Utterances:
        """Concatenate all rows of several `Utterances`, with texts that are not normalised."""
        return cls([part for utterances in several for part in utterances.parts])

    def __len__(self) -> int:
        if self._rows is not None:
            return len(self._rows)
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Utterance: ...

    @overload
    def __getitem__(self, index: slice) -> Utterances: ...

    def __getitem__(self, index: int | slice) -> Utterance | Utterances:
        if isinstance(index, slice):
            return self.select(np.arange(len(self))[index])
        number = range(len(self))[index]  # handles negative positions and raises IndexError
        row = number if self._rows is None else int(self._rows[number])
        part_number = bisect_right(self._ends, row)
        part = self.parts[part_number]
        return self._made(part, part.index.utterance(row - (self._ends[part_number - 1] if part_number else 0)))

    def __iter__(self) -> Iterator[Utterance]:
        return map(self.__getitem__, range(len(self)))

    def _made(self, part: Part, written: Utterance) -> Utterance:
        text = written.text if self._normalize is None else self._normalize(written.text)
        path = join(part.folder, written.audio_filepath)
        return replace(written, audio_filepath=path, text=text, id=part.prefix + written.id, manifest=part.name)

    def select(self, indices: np.ndarray) -> Utterances:
        """Return the utterances at these positions, (M,) int64, which must be ascending."""
        rows = indices if self._rows is None else self._rows[indices]
        return Utterances(self.parts, rows, self._normalize)

    def sample(self, max_number: int) -> Utterances:
        """Return up to `max_number` of these utterances, evenly spaced."""
        rows = np.linspace(0, max(0, len(self) - 1), min(len(self), max_number)).round().astype(np.int64)
        return self.select(rows)

    def normalized(self, normalize: Callable[[str], str]) -> Utterances:
        """Return these utterances with normalised texts; texts are normalised on access."""
        return Utterances(self.parts, self._rows, normalize)

    @property
    def source(self) -> str | None:
        """Hash of the manifests or shards, before normalisation; None if it is unknown or rows are selected."""
        sources = [part.index.source for part in self.parts]
        if self._rows is not None or None in sources:
            return None
        return " ".join(f"{part.prefix}{part.index.source}" for part in self.parts)

    @property
    def durations(self) -> Tensor:
        """Duration of each utterance in seconds, (N,) float64."""
        return torch.from_numpy(self._numbers("duration"))

    @property
    def offsets(self) -> Tensor:
        """Start of each utterance in its file in seconds, (N,) float64; NaN: the utterance is the whole file."""
        return torch.from_numpy(self._numbers("offset"))

    @property
    def num_bytes(self) -> np.ndarray:
        """Number of bytes of each utterance's audio in its shard, (N,) float64; NaN: the audio is a separate file."""
        return self._numbers("num_bytes").astype(np.float64)

    @property
    def num_row_bytes(self) -> int:
        """Size of the selected row numbers in bytes; 0 without a selection."""
        return 0 if self._rows is None else self._rows.nbytes

    def _numbers(self, name: str) -> np.ndarray:
        columns = [part.index.column(name) for part in self.parts]
        values = np.concatenate(columns) if columns else np.zeros(0)
        return values if self._rows is None else values[self._rows]

    @property
    def hours(self) -> float:
        """Total hours of audio."""
        return float(self.durations.sum()) / 3600

    def audio_paths(self) -> Iterator[str]:
        """Yield the audio path of each utterance."""
        for part in self.split():
            yield from (join(part.parts[0].folder, path) for path in part.values("audio_filepath"))

    def split(self) -> Iterator[Utterances]:
        """Yield the utterances of each part."""
        first = 0
        for part, end in zip(self.parts, self._ends, strict=True):
            rows = None if self._rows is None else self._rows[(self._rows >= first) & (self._rows < end)] - first
            yield Utterances([part], rows, self._normalize)
            first = end

    def values(self, name: str) -> Iterator[str]:
        """Yield the values of a text column; texts are normalised. Making `Utterance`s would be ten times slower."""
        change = self._normalize if name == "text" and self._normalize is not None else str
        for part, column in self._columns(name):
            prefix = part.prefix if name == "id" else ""
            yield from (prefix + change(decoded(value)) for value in column.to_pylist())

    @property
    def labels(self) -> list[str]:
        """Names of the labels of the indexes."""
        return list(dict.fromkeys(label for part in self.parts for label in part.index.labels))

    def label(self, name: str) -> Iterator[str | None]:
        """Yield the value of a label for each utterance; None: the utterance does not have the label."""
        for _, column in self._columns(f"{LABEL}{name}"):
            yield from (None if value is None else decoded(value) for value in column.to_pylist())

    def _columns(self, name: str) -> Iterator[tuple[Part, pa.Array]]:
        """Yield the selected values of a text column of each record batch; an index may have no such label."""
        first = 0
        for part in self.parts:
            for batch in part.index.batches:
                has_column = name in batch.schema.names
                column = batch.column(name) if has_column else pa.nulls(batch.num_rows, pa.binary())
                if self._rows is not None:
                    begin, end = np.searchsorted(self._rows, [first, first + batch.num_rows])
                    column = column.take(self._rows[begin:end] - first) if begin < end else column[:0]
                first += batch.num_rows
                yield part, column

    @property
    def manifests(self) -> list[str]:
        """Names of the manifests, in order."""
        return [part.name for part in self.parts]

    @property
    def texts(self) -> TextColumn:
        """The normalised text of each utterance."""
        return TextColumn(self, "text")

    @property
    def ids(self) -> TextColumn:
        """The id of each utterance."""
        return TextColumn(self, "id")


def with_known_ids(parts: Sequence[Part]) -> set[int]:
    """Return the indices of the parts that share an id with an earlier part."""
    if len(parts) < 2:
        return set()
    hashes = [
        np.fromiter((hash(name) for batch in part.index.batches for name in batch.column("id").to_pylist()), np.int64)
        for part in parts
    ]
    known, shared = hashes[0], set()
    for index, own in enumerate(hashes[1:], start=1):
        if np.isin(own, known).any():
            shared.add(index)
        known = np.concatenate([known, own])
    return shared


class TextColumn(Sequence[str]):
    """A text column of utterances, read on access.

    Args:
        utterances: the utterances that have the column.
        name: name of the column: id or text.
    """

    def __init__(self, utterances: Utterances, name: str) -> None:
        self._utterances = utterances
        self._name = name

    def __len__(self) -> int:
        return len(self._utterances)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        value: str = getattr(self._utterances[index], self._name)
        return value

    def __iter__(self) -> Iterator[str]:
        return self._utterances.values(self._name)
