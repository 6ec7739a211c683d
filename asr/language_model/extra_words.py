"""Words that no text holds, names for instance, in a model with Kneser-Ney smoothing."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from asr.language_model.kneser_ney import BOS, NGrams, suffixes


def add_words(model: Sequence[NGrams], vocab_size: int, number: int, probability: float) -> list[NGrams]:
    """Let new words share a part of the unigrams' mass equally, as the words of one class.

    *Source*: the class-based model of Brown et al. 1992, p(w) = p(class) p(w | class), for one class without a
    context, whose words are equally likely.

    All other unigrams are scaled by 1 - probability. Every higher order is interpolated with the next lower one,
    p(w|h) = own share + b(h) p(w|h'), h' being h without its first word; own shares and b(h) come from counts and do
    not change. So the change of p(w|h) is b(h) times the change of p(w|h'), which makes the model that an estimation
    with these unigrams makes: after each context the probabilities still sum to one, with the back-offs as they are.

    Args:
        model: from `estimate`.
        vocab_size: the model's.
        number: of new words. Their ids follow those of the model's words.
        probability: of all new words together, as unigrams; between 0 and 1.

    Returns:
        The model over vocab_size + number words.
    """
    larger: list[NGrams] = []
    change = -probability * 10 ** model[0].log_probs  # of probabilities, of the order at hand
    change[BOS] = 0  # never predicted
    for grams, ends in zip(model, suffixes([grams.keys for grams in model], vocab_size), strict=True):
        contexts, words = np.divmod(grams.keys, vocab_size)
        if larger:
            change = 10 ** model[len(larger) - 1].backoffs[contexts] * change[ends]
        with np.errstate(divide="ignore"):  # a word that a text of a mixture lacks may have no probability
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
    """Add to each model the listed words that the models do not have; return the models and all words by id.

    Args:
        models: from `estimate`, over one vocabulary.
        words: the vocabulary by id, SPECIAL first.
        listed: words, each once.
        probability: as of `add_words`.
    """
    known = set(words)
    new = [word for word in listed if word not in known]
    if not new:
        return list(models), list(words)
    return [add_words(model, len(words), len(new), probability) for model in models], [*words, *new]
