"""The fingerprint of manifests: by it a run that is resumed knows that its data are those it was begun with."""

import hashlib
import math
from collections.abc import Iterable

import numpy as np

from asr.data.index_cache import IndexCache, spread
from asr.data.manifest import Utterance
from asr.data.utterances import Utterances


def fingerprint(utterances: Iterable[Utterance]) -> str:
    """Tell manifests apart by what training takes from them, wherever the audio is."""
    return _fingerprint(
        (utterance.id, utterance.offset, utterance.duration, utterance.text) for utterance in utterances
    )


def stored_fingerprint(utterances: Utterances, cache: IndexCache, normalizer: str) -> str:
    """Return what `fingerprint` returns, from `cache` if it is there.

    Args:
        utterances: texts normalised.
        cache: that keeps the fingerprint.
        normalizer: name of the normaliser of the texts.
    """
    if utterances.source is None:
        return fingerprint(utterances)
    probes = [utterances[place].text for place in spread(len(utterances))]
    key = repr(("fingerprint", utterances.source, normalizer, probes))
    stored = cache.numbers(key, lambda: np.frombuffer(_of_columns(utterances).encode(), dtype=np.uint8))
    return stored.tobytes().decode()


def mixture_of(utterances: Utterances) -> dict[str, str]:
    """Return the weights of a training set's manifests, as fingerprints are; nothing where each counts once."""
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
