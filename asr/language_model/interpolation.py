"""Linear interpolation of n-gram models: weights by EM on a text, and the mixture as one back-off model."""

from collections.abc import Iterator, Sequence

import numpy as np

from asr.language_model.kneser_ney import BOS, Array, NGrams, suffixes
from asr.language_model.query import DevText

MAX_STEPS = 10_000
_SETTLED = 1e-7  # the largest change of a weight in EM's last step
_LEAST = 1e-12  # probability of the words not listed, where rounding leaves none


def mix(models: Sequence[Sequence[NGrams]], dev: DevText) -> tuple[Array, list[NGrams]]:
    """Mix models with the weights that suit a text best: return the weights and the mixture as one model.

    Unknown words do not count for the weights: no model knows them, and p(<unk>) only says how much a model expects
    of what it has not seen, the more the smaller its text was.
    """
    weights = fit_weights(np.stack([10 ** dev.log_probs(model)[dev.known] for model in models]))
    return weights, interpolate(models, weights, dev.vocab_size)


def fit_weights(probabilities: Array) -> Array:
    """Find the weights of a linear mixture that make a text most likely, by EM from equal weights.

    *Source*: Jelinek and Mercer 1980, "Interpolated estimation of Markov source parameters from sparse data". The
    likelihood is concave in the weights, so that EM ends at the global maximum.

    Args:
        probabilities: (models, T) that each model gives to each word of the text.

    Returns:
        (models,) They sum to one.
    """
    weights = np.full(len(probabilities), 1 / len(probabilities))
    for _ in range(MAX_STEPS):
        before, weights = weights, em_step(weights, probabilities)
        if np.abs(weights - before).max() < _SETTLED:
            break
    return weights


def em_step(weights: Array, probabilities: Array) -> Array:
    """Make each weight the mean, over the text, of the posterior probability that its model produced the word."""
    mixture = weights @ probabilities  # (T,)
    weights = weights * (probabilities @ (1 / mixture))
    return weights / weights.sum()  # by T, up to rounding


def interpolate(models: Sequence[Sequence[NGrams]], weights: Array, vocab_size: int) -> list[NGrams]:
    """Write the mixture sum of weight_i p_i(w|h) of several models as one back-off model.

    *Source*: Stolcke 2002, "SRILM: an extensible language modeling toolkit" (`ngram -mix-lm`). It lists every n-gram
    that one of the models lists, with the mixture's probability; a back-off weight gives the words that are not listed
    after a context their probability of the mixture, all together.

    Differs from the mixture asked word by word where a word is not listed after its context h: the mixture backs off
    in each model with its own back-off weight, sum of weight_i b_i(h) p_i(w|h'), and this model with one for all,
    b(h) p(w|h'), h' being h without its first word. Listed n-grams are equal, and so is the sum of all others after a
    context.

    Differs from SRILM: b(h) is not computed as (1 - sum of listed p(w|h)) / (1 - sum of listed p(w|h')), which loses
    all digits where nearly everything is listed. It is the mean of the b_i(h), weighted by
    weight_i (1 - sum of listed p_i(w|h')): the same number, and between the models' own however sums are rounded.

    Args:
        models: n-grams of order 1, 2, and so on of each; all of one order, over one vocabulary, in which
            a word that a model's text lacks has the probability of <unk>. Pruned n-grams count as not listed.
        weights: (models,) that sum to one.
        vocab_size: of the vocabulary.
    """
    keys, places = _union(models, vocab_size)
    ends = suffixes(keys, vocab_size)
    probs = [np.zeros(len(own)) for own in keys]
    backed_off, rooms = ([np.zeros(len(own)) for own in keys[:-1]] for _ in range(2))  # sums of what b(h) is made of
    for weight, model, own in zip(weights, models, places, strict=True):
        for n, (values, backoffs) in enumerate(_extended(model, own, keys, ends, vocab_size)):
            probs[n] += weight * values
            if n + 1 < len(keys):
                room = weight * _not_listed(values, keys[n + 1], ends[n + 1], vocab_size)
                backed_off[n] += room * backoffs
                rooms[n] += room
    mixed = [np.log10(values) for values in probs]
    mixed[0][BOS] = models[0][0].log_probs[BOS]  # never predicted
    weights_of = [np.log10(number / room) for number, room in zip(backed_off, rooms, strict=True)]
    weights_of.append(np.zeros(len(keys[-1])))
    return [
        NGrams(own, log_probs, backoffs, np.ones(len(own), bool), (), any(grams.fallback for grams in orders))
        for own, log_probs, backoffs, orders in zip(keys, mixed, weights_of, zip(*models, strict=True), strict=True)
    ]


def _union(models: Sequence[Sequence[NGrams]], vocab_size: int) -> tuple[list[Array], list[list[Array]]]:
    """List the n-grams of all models: their keys by order, and by model and order the place of each of its n-grams."""
    keys = [np.arange(vocab_size)]
    places = [[keys[0]] for _ in models]
    for n in range(1, len(models[0])):
        renamed = []
        for model, own in zip(models, places, strict=True):
            contexts, words = np.divmod(model[n].keys[model[n].kept], vocab_size)
            renamed.append(own[-1][contexts] * vocab_size + words)
        keys.append(np.unique(np.concatenate(renamed)))
        for model, own, wanted in zip(models, places, renamed, strict=True):
            own.append(np.zeros(len(model[n].keys), np.int64))  # those that were pruned are not asked for
            own[-1][model[n].kept] = np.searchsorted(keys[-1], wanted)
    return keys, places


def _extended(
    model: Sequence[NGrams], places: Sequence[Array], keys: Sequence[Array], ends: Sequence[Array], vocab_size: int
) -> Iterator[tuple[Array, Array]]:
    """Yield, by order, a model's probabilities and back-off weights of all n-grams, those it does not list included."""
    log_probs, backoffs = model[0].log_probs, model[0].backoffs
    for n, grams in enumerate(model):
        if n:
            log_probs = backoffs[keys[n] // vocab_size] + log_probs[ends[n]]
            backoffs = np.zeros(len(keys[n]))
            listed = places[n][grams.kept]
            log_probs[listed], backoffs[listed] = grams.log_probs[grams.kept], grams.backoffs[grams.kept]
        yield 10**log_probs, 10**backoffs


def _not_listed(probs: Array, longer: Array, ends: Array, vocab_size: int) -> Array:
    """Sum p(w|h'), for each n-gram as a context h, over the words w that are not listed after it.

    Args:
        probs: (N,) of the n-grams.
        longer: (M,) keys of the n-grams of the next order.
        ends: (M,) the place of each of those without its first word.
        vocab_size: of the vocabulary.
    """
    listed = np.bincount(longer // vocab_size, probs[ends], len(probs))
    return np.maximum(1 - listed, _LEAST)
