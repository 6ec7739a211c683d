"""A table of the perplexity of a dev text under language models."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from asr.base.text.numbers import counted, interval, number, percent
from asr.base.text.printable import printable
from asr.core.cli.table import lay_out, short_name
from asr.core.evaluation.perplexity import perplexity

if TYPE_CHECKING:
    from asr.base.language_model.kneser_ney import Array, NGrams
    from asr.base.language_model.query import DevText

TITLES = ("model", "weight", "perplexity", "95 % interval", "without unknown", "95 % interval")
NOTES = (
    "Perplexity is per {unit}; </s> counts as a {unit}, and an unknown {unit} has the probability of {unknown}.",
    "Intervals: a bootstrap over sentences. -: a {unit} has probability 0, or there are too few sentences.",
)


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
