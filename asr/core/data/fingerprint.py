"""Fingerprints of manifests: a run is resumed only on the utterances with which it began."""

import hashlib
import math
from collections.abc import Iterable, Sequence

import numpy as np

from asr.core.data.index_cache import IndexCache, spread
from asr.core.data.manifest import Utterance
from asr.core.data.utterances import Utterances


def fingerprint(utterances: Iterable[Utterance], labels: Sequence[str] = ()) -> str:
    """Hash the fields that training uses: id, offset, duration, text and these labels, but not the audio's path."""
    return _fingerprint(
        (each.id, each.offset, each.duration, each.text, *(each.labels.get(name) for name in labels))
        for each in utterances
    )


def stored_fingerprint(utterances: Utterances, cache: IndexCache, normalizer: str, labels: Sequence[str] = ()) -> str:
    """Return the `fingerprint` of utterances, stored in `cache`; it includes these labels, if there are any."""
    if utterances.source is None:
        return fingerprint(utterances, labels)
    probes = [utterances[index].text for index in spread(len(utterances))]
    key = repr(("fingerprint", utterances.source, normalizer, probes, *labels))
    stored = cache.numbers(key, lambda: np.frombuffer(_of_columns(utterances, labels).encode(), dtype=np.uint8))
    return stored.tobytes().decode()


def mixture_of(utterances: Utterances) -> dict[str, str]:
    """Return an entry for fingerprints: the size and the mean repeats of each manifest of a training set.

    The result is {} if each utterance occurs once.
    """
    if all(part.repeats == 1 for part in utterances.parts):
        return {}
    return {"mixture": ", ".join(f"{part.index.num_rows} x {part.repeats:.9g}" for part in utterances.parts)}


def _of_columns(utterances: Utterances, labels: Sequence[str]) -> str:
    offsets = (None if math.isnan(offset) else offset for offset in utterances.offsets.tolist())
    columns = utterances.ids, offsets, utterances.durations.tolist(), utterances.texts
    return _fingerprint(zip(*columns, *map(utterances.label, labels), strict=True))


def _fingerprint(rows: Iterable[tuple[str | float | None, ...]]) -> str:
    digest, number = hashlib.sha256(), 0
    for row in rows:
        digest.update(("\t".join(map(str, row)) + "\n").encode())
        number += 1
    return f"{number} utterances, sha256 {digest.hexdigest()[:16]}"
