"""A table of the perplexity of a dev text under language models."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from asr.base.text.numbers import counted, interval, number, percent
from asr.base.text.printable import printable
from asr.base.text.table import lay_out, short_name
from asr.core.evaluation.bootstrap import intervals
from asr.core.evaluation.perplexity import of_loss

if TYPE_CHECKING:
    from asr.base.language_model.kneser_ney import Array, NGrams
    from asr.base.language_model.query import DevText

LN_10 = math.log(10)
TITLES = ("model", "weight", "perplexity", "95 % interval", "without unknown", "95 % interval")
NOTES = (
    "Perplexity is per {unit}; </s> counts as a {unit}, and an unknown {unit} has the probability of {unknown}.",
    "Intervals: a bootstrap over sentences. -: a {unit} has probability 0, or there are too few sentences.",
)


class Perplexity(NamedTuple):
    """Perplexity per word.

    Args:
        value: the inverse of the geometric mean of the words' probabilities; infinite if a probability is 0.
        interval: 95 % interval from a bootstrap over sentences; None for fewer than bootstrap.MIN_UNITS sentences, or
            if `value` is infinite.
    """

    value: float
    interval: tuple[float, float] | None


def perplexity(log_probs: "Array", sentence: "Array") -> Perplexity:
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


def dev_lines(
    path: str,
    dev: "DevText",
    models: "Sequence[tuple[str, float | None, Sequence[NGrams]]]",
    *,
    listed_from: int | None = None,
    spelled: "Array | None" = None,
    unit: str = "word",
) -> list[str]:
    """Return lines with the number of unknown words of a dev text, and a table of perplexities with a row per model.

    Args:
        path: path of the dev text.
        dev: the dev text.
        models: name, weight (None: not part of a mixture) and n-grams of each model.
        listed_from: this id and all higher ids stand for words given by --words that do not occur in the texts.
            None: there is no --words.
        spelled: for each unknown word, log10 of the probability of its spelling, (number of unknown words,). None:
            there is no spelling model.
        unit: unit of the models: word or token.
    """
    words, unknown = len(dev.known) - dev.num_sentences, int((~dev.known).sum())
    first = f"{path}: {counted(dev.num_sentences, 'sentence')}, {counted(words, unit)}"
    first += f", {unknown:,} unknown ({percent(unknown / words, 2)})"
    if listed_from is not None:
        added = int((dev.predicted >= listed_from).sum())
        first += f", {added:,} known by --words alone ({percent(added / words, 2)})"
    rows: list[tuple[str, ...]] = [TITLES]
    for name, weight, model in models:
        log_probs, cells = dev.log_probs(model), []
        if spelled is not None:
            log_probs[~dev.known] += spelled
        for chosen in (slice(None), dev.known):
            value, ends = perplexity(log_probs[chosen], dev.sentence[chosen])
            cells += [number(value), interval(ends, number)]
        rows.append((short_name(printable(name)), "" if weight is None else f"{weight:.4f}", *cells))
    if all(weight is None for _, weight, _ in models):
        rows = [(name, *cells) for name, _, *cells in rows]
    unknown_is = "<unk>" if spelled is None else "<unk> times that of its spelling"
    return [first, *lay_out(rows), *(note.format(unit=unit, unknown=unknown_is) for note in NOTES)]


def words_line(path: str, listed: int, new: int, probability: float) -> str:
    """Return a line with the number of words given by --words, and how many of these words the texts do not contain."""
    share = f"; they share {probability:g} of the unigrams' probability" if new else ""
    return f"{path}: {counted(listed, 'word')}, {new:,} of them not in the texts{share}"
