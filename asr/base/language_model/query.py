"""Probabilities of all words of a text under an n-gram model, vectorised."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from asr.base.language_model.kneser_ney import BOS, EOS, UNK, Array, NGrams


@dataclass(frozen=True, slots=True)
class DevText:
    """A dev text, converted to the ids of a vocabulary.

    Args:
        ids: (T,) sentences, each as BOS, words, EOS; UNK for unknown words.
        vocab_size: size of the vocabulary.
        unknown: unknown words, in the order of the text.
    """

    ids: Array
    vocab_size: int
    unknown: Sequence[str] = ()

    @classmethod
    def translate(cls, words: Sequence[str], ids: Array, vocabulary: Sequence[str]) -> Self:
        """Convert a text whose ids are indices into `words`; `words` and `vocabulary` both begin with SPECIAL."""
        known = {word: number for number, word in enumerate(vocabulary)}
        translated = np.array([known.get(word, UNK) for word in words])[ids]
        return cls(translated, len(vocabulary), [words[number] for number in ids[translated == UNK]])

    @property
    def predicted(self) -> Array:
        """(N,) The predicted ids: words, and the </s> of each sentence."""
        return self.ids[self.ids != BOS]

    @property
    def known(self) -> Array:
        """(N,) Whether each predicted id is in the vocabulary."""
        return self.predicted != UNK

    @property
    def sentence(self) -> Array:
        """(N,) The sentence number of each predicted id, from 0."""
        begins = self.ids == BOS
        return (np.cumsum(begins) - 1)[~begins]

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return int((self.ids == EOS).sum())

    def log_probs(self, model: Sequence[NGrams]) -> Array:
        """Return log10 of each predicted id's probability under a model: (N,)."""
        return log_probs(model, self.ids, self.vocab_size)[self.ids != BOS]


def log_probs(model: Sequence[NGrams], ids: Array, vocab_size: int) -> Array:
    """Return log10 p(word | preceding words of its sentence) at each position of a text.

    *Source*: the back-off recursion of Katz 1987, as ARPA files define it, from the shortest context to the longest:
    if the longer n-gram is not listed, the probability is multiplied by the back-off weight of the longer context.

    Args:
        model: n-grams of order 1, 2, and so on.
        ids: (T,) sentences, each as BOS, words, EOS.
        vocab_size: size of the model's vocabulary.

    Returns:
        (T,) Values at BOS have no meaning, because BOS is not predicted.
    """
    rows = np.asarray(ids, np.int64)  # row of the n-gram that ends at each position; -1: not listed
    scores = model[0].log_probs[rows]
    for lower, grams in pairwise(model):
        contexts = np.concatenate([[-1], rows[:-1]])
        rows = find(grams.keys, contexts * vocab_size + ids)  # -1 matches no key: keys are not negative
        backed_off = scores + np.where(contexts < 0, 0, lower.backoffs[contexts])
        scores = np.where(rows < 0, backed_off, grams.log_probs[rows]) if len(grams.keys) else backed_off
    return scores


def find(keys: Array, wanted: Array) -> Array:
    """Return the index of each wanted key in a sorted array of keys; -1 for absent keys."""
    if not len(keys):
        return np.full(len(wanted), -1)
    rows = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[rows] == wanted, rows, -1)
