"""Linear interpolation of n-gram models: fit weights by EM on a dev text; merge the models into one back-off model."""

from collections.abc import Iterator, Sequence

import numpy as np

from asr.base.language_model.kneser_ney import BOS, Array, NGrams, suffixes
from asr.base.language_model.query import DevText

MAX_STEPS = 10_000
_CONVERGED = 1e-7  # EM ends when all weights change by at most this
_MIN_MASS = 1e-12  # replaces the probability of unlisted words if rounding makes it 0 or negative


def mix(models: Sequence[Sequence[NGrams]], dev: DevText) -> tuple[Array, list[NGrams]]:
    """Fit mixture weights on a dev text; return the weights and the mixture as one model.

    Unknown words are ignored. No model contains them, and a model's p(<unk>) is larger if its training text is smaller,
    so unknown words would favour the smallest model.
    """
    weights = fit_weights(np.stack([10 ** dev.log_probs(model)[dev.known] for model in models]))
    return weights, interpolate(models, weights, dev.vocab_size)


def fit_weights(probabilities: Array) -> Array:
    """Find the weights of a linear mixture that maximise a text's likelihood, by EM from equal weights.

    *Source*: Jelinek and Mercer 1980, "Interpolated estimation of Markov source parameters from sparse data". The
    log-likelihood is concave in the weights, so EM converges to the global maximum.

    Args:
        probabilities: (models, T) probability of each word of the text under each model.

    Returns:
        (models,) weights that sum to one.
    """
    weights = np.full(len(probabilities), 1 / len(probabilities))
    for _ in range(MAX_STEPS):
        before, weights = weights, em_step(weights, probabilities)
        if np.abs(weights - before).max() < _CONVERGED:
            break
    return weights


def em_step(weights: Array, probabilities: Array) -> Array:
    """Set each weight to the posterior probability that its model produced a word, averaged over the text."""
    mixture = weights @ probabilities  # (T,)
    weights = weights * (probabilities @ (1 / mixture))
    return weights / weights.sum()  # the sum is T, up to rounding


def interpolate(models: Sequence[Sequence[NGrams]], weights: Array, vocab_size: int) -> list[NGrams]:
    """Return the mixture sum of weight_i p_i(w|h) of several models as one back-off model.

    *Source*: Stolcke 2002, "SRILM: an extensible language modeling toolkit" (`ngram -mix-lm`). The result lists every
    n-gram that any of the models lists, with the mixture's probability. Its back-off weights preserve the total
    mixture probability of the words that are not listed after a context.

    Differs from the exact mixture for a word that is not listed after its context h. The exact mixture backs off in
    each model separately: sum of weight_i b_i(h) p_i(w|h'), where h' is h without its first word. This model backs off
    with one weight: b(h) p(w|h'). The probabilities of listed n-grams are exact; the probabilities of the words not
    listed after a context are exact in their sum.

    Differs from SRILM: b(h) is not computed as (1 - sum of listed p(w|h)) / (1 - sum of listed p(w|h')), which loses
    all digits if almost all words are listed. It is computed as the mean of the b_i(h) with the weights
    weight_i (1 - sum of listed p_i(w|h')): mathematically equal, and always between the smallest and largest b_i(h).

    Args:
        models: n-grams of order 1, 2, and so on of each model; all models have the same order and vocabulary. A word
            that is absent from a model's text has the probability of <unk>. Pruned n-grams count as not listed.
        weights: (models,) weights that sum to one.
        vocab_size: size of the vocabulary.
    """
    keys, rows = _union(models, vocab_size)
    ends = suffixes(keys, vocab_size)
    probs = [np.zeros(len(own)) for own in keys]
    backed_off, rooms = ([np.zeros(len(own)) for own in keys[:-1]] for _ in range(2))  # numerator, denominator of b(h)
    for weight, model, own in zip(weights, models, rows, strict=True):
        for n, (values, backoffs) in enumerate(_extended(model, own, keys, ends, vocab_size)):
            probs[n] += weight * values
            if n + 1 < len(keys):
                room = weight * _not_listed(values, keys[n + 1], ends[n + 1], vocab_size)
                backed_off[n] += room * backoffs
                rooms[n] += room
    mixed = [np.log10(values) for values in probs]
    mixed[0][BOS] = models[0][0].log_probs[BOS]  # <s> is never predicted
    weights_of = [np.log10(number / room) for number, room in zip(backed_off, rooms, strict=True)]
    weights_of.append(np.zeros(len(keys[-1])))
    return [
        NGrams(
            own,
            log_probs,
            backoffs,
            np.ones(len(own), bool),
            discounts=(),
            fallback=any(grams.fallback for grams in orders),
        )
        for own, log_probs, backoffs, orders in zip(keys, mixed, weights_of, zip(*models, strict=True), strict=True)
    ]


def _union(models: Sequence[Sequence[NGrams]], vocab_size: int) -> tuple[list[Array], list[list[Array]]]:
    """Merge the n-grams of all models.

    Returns:
        The merged keys, by order, and the rows of each model's n-grams in the merged keys, by model and order.
    """
    keys = [np.arange(vocab_size)]
    rows = [[keys[0]] for _ in models]
    for n in range(1, len(models[0])):
        renamed = []
        for model, own in zip(models, rows, strict=True):
            contexts, words = np.divmod(model[n].keys[model[n].kept], vocab_size)
            renamed.append(own[-1][contexts] * vocab_size + words)
        keys.append(np.unique(np.concatenate(renamed)))
        for model, own, wanted in zip(models, rows, renamed, strict=True):
            own.append(np.zeros(len(model[n].keys), np.int64))  # rows of pruned n-grams are never used
            own[-1][model[n].kept] = np.searchsorted(keys[-1], wanted)
    return keys, rows


def _extended(
    model: Sequence[NGrams], rows: Sequence[Array], keys: Sequence[Array], ends: Sequence[Array], vocab_size: int
) -> Iterator[tuple[Array, Array]]:
    """Yield, by order, a model's probabilities and back-off weights of all merged n-grams, listed or not."""
    log_probs, backoffs = model[0].log_probs, model[0].backoffs
    for n, grams in enumerate(model):
        if n:
            log_probs = backoffs[keys[n] // vocab_size] + log_probs[ends[n]]
            backoffs = np.zeros(len(keys[n]))
            listed = rows[n][grams.kept]
            log_probs[listed], backoffs[listed] = grams.log_probs[grams.kept], grams.backoffs[grams.kept]
        yield 10**log_probs, 10**backoffs


def _not_listed(probs: Array, longer: Array, ends: Array, vocab_size: int) -> Array:
    """Sum p(w|h') over the words w that are not listed after the context h, for each n-gram h.

    Args:
        probs: (N,) probabilities of the n-grams.
        longer: (M,) keys of the n-grams of the next higher order.
        ends: (M,) rows of their suffixes.
        vocab_size: size of the vocabulary.
    """
    listed = np.bincount(longer // vocab_size, probs[ends], len(probs))
    return np.maximum(1 - listed, _MIN_MASS)
