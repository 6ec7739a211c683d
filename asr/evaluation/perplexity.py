"""Perplexity of a text under a language model, and how sure it is."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from asr.evaluation.bootstrap import Array, intervals


class Perplexity(NamedTuple):
    """Perplexity per word.

    Args:
        value: the inverse of the geometric mean of the words' probabilities; infinity where one is 0.
        interval: of 95 %, by a bootstrap over sentences; None where there are fewer than bootstrap.FEWEST,
            and of infinity.
    """

    value: float
    interval: tuple[float, float] | None


def perplexity(log_probs: Array, sentence: Array) -> Perplexity:
    """Compute the perplexity of a text.

    Args:
        log_probs: (T,) log10 of the probability of each word that is counted, each </s> included.
        sentence: (T,) the number of the sentence that it belongs to, from 0.
    """
    if np.isneginf(log_probs).any():
        return Perplexity(math.inf, None)
    surprise = np.bincount(sentence, -log_probs).astype(np.float64)  # (sentences,)
    words = np.bincount(sentence).astype(np.float64)
    [middle] = intervals(surprise[:, None], words[:, None])
    value = float(10 ** (surprise.sum() / words.sum()))
    return Perplexity(value, None if middle is None else (10 ** middle[0], 10 ** middle[1]))
