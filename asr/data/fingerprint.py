"""The fingerprint of manifests, by which a resumed run detects changed data."""

import hashlib
import math
from collections.abc import Iterable

import numpy as np

from asr.data.index_cache import IndexCache, spread
from asr.data.manifest import Utterance
from asr.data.utterances import Utterances


def fingerprint(utterances: Iterable[Utterance]) -> str:
    """Hash the fields that training uses: id, offset, duration and text, but not the path of the audio."""
    return _fingerprint(
        (utterance.id, utterance.offset, utterance.duration, utterance.text) for utterance in utterances
    )


def stored_fingerprint(utterances: Utterances, cache: IndexCache, normalizer: str) -> str:
    """Return the `fingerprint` of utterances, stored in `cache`."""
    if utterances.source is None:
        return fingerprint(utterances)
    probes = [utterances[index].text for index in spread(len(utterances))]
    key = repr(("fingerprint", utterances.source, normalizer, probes))
    stored = cache.numbers(key, lambda: np.frombuffer(_of_columns(utterances).encode(), dtype=np.uint8))
    return stored.tobytes().decode()


def mixture_of(utterances: Utterances) -> dict[str, str]:
    """Return an entry for fingerprints: the size and the mean repeats of each manifest of a training set.

    The result is {} if each utterance occurs once.
    """
    if all(part.repeats == 1 for part in utterances.parts):
        return {}
    return {"mixture": ", ".join(f"{part.index.num_rows} x {part.repeats:.9g}" for part in utterances.parts)}


def _of_columns(utterances: Utterances) -> str:
    offsets = (None if math.isnan(offset) else offset for offset in utterances.offsets.tolist())
    return _fingerprint(zip(utterances.ids, offsets, utterances.durations.tolist(), utterances.texts, strict=True))


def _fingerprint(rows: Iterable[tuple[str, float | None, float, str]]) -> str:
    digest, number = hashlib.sha256(), 0
    for name, offset, duration, text in rows:
        digest.update(f"{name}\t{offset}\t{duration}\t{text}\n".encode())
        number += 1
    return f"{number} utterances, sha256 {digest.hexdigest()[:16]}"
