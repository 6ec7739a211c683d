"""Add words that are absent from the training text, such as names, to a Kneser-Ney model."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from asr.base.language_model.kneser_ney import BOS, NGrams, suffixes


def add_words(model: Sequence[NGrams], vocab_size: int, number: int, probability: float) -> list[NGrams]:
    """Give new words a share of the unigram probability mass, divided equally among them: they form one class.

    *Source*: the class-based model of Brown et al. 1992, p(w) = p(class) p(w | class), for one class without a
    context, whose words are equally likely.

    All other unigrams are scaled by 1 - probability. Each higher order is interpolated with the next lower one,
    p(w|h) = own share + b(h) p(w|h'), where h' is h without its first word. Own shares and b(h) come from counts and do
    not change, so p(w|h) changes by b(h) times the change of p(w|h'). The result equals an estimation with the new
    unigrams: after each context the probabilities still sum to one, with unchanged back-offs.

    Args:
        model: from `estimate`.
        vocab_size: size of the model's vocabulary.
        number: number of new words; their ids follow the model's ids.
        probability: unigram probability of all new words together; between 0 and 1.

    Returns:
        The model over vocab_size + number words.
    """
    larger: list[NGrams] = []
    change = -probability * 10 ** model[0].log_probs  # change of the probabilities of the current order
    change[BOS] = 0  # <s> is never predicted
    for grams, ends in zip(model, suffixes([grams.keys for grams in model], vocab_size), strict=True):
        contexts, words = np.divmod(grams.keys, vocab_size)
        if larger:
            change = 10 ** model[len(larger) - 1].backoffs[contexts] * change[ends]
        with np.errstate(divide="ignore"):  # a word that is absent from one text of a mixture may have probability 0
            log_probs = np.log10(10**grams.log_probs + change)
        keys = contexts * (vocab_size + number) + words
        larger.append(replace(grams, keys=keys, log_probs=log_probs))
    first = larger[0]
    first = replace(
        first,
        keys=np.arange(vocab_size + number),
        log_probs=np.concatenate([first.log_probs, np.full(number, np.log10(probability / number))]),
        backoffs=np.concatenate([first.backoffs, np.zeros(number)]),
        kept=np.concatenate([first.kept, np.ones(number, bool)]),
    )
    return [first, *larger[1:]]


def extend(
    models: Sequence[Sequence[NGrams]], words: Sequence[str], listed: Sequence[str], probability: float
) -> tuple[list[Sequence[NGrams]], list[str]]:
    """Add the listed words that are not in the vocabulary to each model; return the models and all words by id.

    Args:
        models: from `estimate`, over one vocabulary.
        words: the vocabulary by id, SPECIAL first.
        listed: distinct words.
        probability: unigram probability of all added words together, as in `add_words`.
    """
    known = set(words)
    new = [word for word in listed if word not in known]
    if not new:
        return list(models), list(words)
    return [add_words(model, len(words), len(new), probability) for model in models], [*words, *new]
