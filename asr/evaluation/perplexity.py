"""Perplexity of a text under a language model, with its confidence interval."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from asr.evaluation.bootstrap import Array, intervals


class Perplexity(NamedTuple):
    """Perplexity per word.

    Args:
        value: the inverse of the geometric mean of the words' probabilities; infinite if a probability is 0.
        interval: 95 % interval from a bootstrap over sentences; None for fewer than bootstrap.MIN_UNITS sentences, or
            if `value` is infinite.
    """

    value: float
    interval: tuple[float, float] | None


def perplexity(log_probs: Array, sentence: Array) -> Perplexity:
    """Compute the perplexity of a text.

    Args:
        log_probs: (T,) log10 of the probability of each word and each </s>.
        sentence: (T,) number of the sentence to which the word or </s> belongs, from 0.
    """
    if np.isneginf(log_probs).any():
        return Perplexity(math.inf, None)
    surprise = np.bincount(sentence, -log_probs).astype(np.float64)  # (sentences,)
    words = np.bincount(sentence).astype(np.float64)
    [middle] = intervals(surprise[:, None], words[:, None])
    value = float(10 ** (surprise.sum() / words.sum()))
    return Perplexity(value, None if middle is None else (10 ** middle[0], 10 ** middle[1]))
