"""Perplexity of a text under a language model, with its confidence interval."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from asr.core.evaluation.bootstrap import Array, intervals

LN_10 = math.log(10)
MAX_LOSS = 80.0  # natural logarithm per word; perplexities up to exp(80) = 5.5e34 are exact, also in float32


def of_loss(loss: float) -> float:
    """Return the perplexity exp(loss), or a finite lower bound of it for a loss above `MAX_LOSS`.

    Texts without spaces have larger losses, because each line is a word. The bound grows with the loss, so that the
    best checkpoint has the lowest value.
    """
    return math.exp(min(loss, MAX_LOSS)) * (1 + math.log(max(loss, MAX_LOSS) / MAX_LOSS))


def written(value: float, digits: int = 1) -> str:
    """Write a perplexity with this number of decimals, or with an exponent if it is large."""
    most = of_loss(MAX_LOSS)
    if value >= most:
        return f"at least {most:.1e}"
    return f"{value:.{digits}f}" if value < 1e9 else f"{value:.{digits}e}"


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
    value = of_loss(LN_10 * float(surprise.sum() / words.sum()))
    return Perplexity(value, None if middle is None else (of_loss(LN_10 * middle[0]), of_loss(LN_10 * middle[1])))
