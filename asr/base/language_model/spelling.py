"""Probability of the spelling of unknown words: an n-gram model over characters."""

from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any

import numpy as np

from asr.base.language_model.kenlm import SPACE, NgramModel
from asr.base.language_model.kneser_ney import BOS, EOS, SPECIAL, UNK, Array, NGrams, estimate
from asr.base.language_model.query import log_probs
from asr.errors import InputError

ORDER = 6  # five characters of context; KenLM's maximum
MIN_LETTERS, MAX_LETTERS = 15, 300
MAX_COUNT = 5  # words up to this frequency serve as examples of unknown words


def is_alphabet(entries: Set[str]) -> bool:
    """Whether all entries are single characters, and their number is plausible for the letters of a script."""
    is_script = MIN_LETTERS <= len(entries) <= MAX_LETTERS
    return is_script and SPACE not in entries and all(len(entry) == 1 for entry in entries)


class SpellingModel:
    """The probability of a word as a sequence of characters and an end.

    The probabilities of all strings sum to one, so P(<unk> | history) times P(spelling) is a probability of each
    unknown word. The model uses characters because different token sequences may spell the same word.

    Args:
        path: an n-gram model over characters (`asr.ngram --spelling`).

    Raises:
        InputError: the file is not an n-gram model over characters.
    """

    def __init__(self, path: str) -> None:
        self._model = NgramModel(path)
        longer = sorted(entry for entry in self._model.words if len(entry) > 1)
        if longer:
            must = f"{path}: the entries of a spelling model must be single characters (asr.ngram --spelling)"
            raise InputError(f"{must}; got {longer[0]!r}, and {len(longer) - 1} more.")

    def start(self) -> Any:
        """Return the state before the first character of a word."""
        return self._model.start()

    def extend(self, state: Any, characters: str) -> tuple[float, Any]:
        """Return log P(characters | preceding characters), natural logarithm, and the next state."""
        total = 0.0
        for character in characters:
            log_prob, state = self._model.score(state, character)
            total += log_prob
        return total, state

    def end(self, state: Any) -> float:
        """Return log P(the word ends here)."""
        return self._model.end(state)


def estimate_spelling(counts: Mapping[str, int]) -> tuple[list[NGrams], list[str]]:
    """Estimate a spelling model from the rare words of a text, which occur at most MAX_COUNT times.

    Unknown words resemble rare words more than frequent words. Each rare word counts once.

    Args:
        counts: count of each word; if no word is rare, all words are used.

    Returns:
        The model, and its characters by id, as `write_arpa` expects them.
    """
    words = [word for word, count in counts.items() if count <= MAX_COUNT] or list(counts)
    characters = sorted({character for word in words for character in word})
    ids = {character: number for number, character in enumerate(characters, start=len(SPECIAL))}
    spelled = (number for word in words for number in (BOS, *(ids[character] for character in word), EOS))
    size = len(SPECIAL) + len(characters)
    model = estimate(np.fromiter(spelled, np.int32), size, ORDER, thresholds=[0] * ORDER)
    return model, [*SPECIAL, *characters]


def spelling_of_text(words: Sequence[str], ids: Array) -> tuple[list[NGrams], list[str]]:
    """Estimate the spelling model of a text.

    Args:
        words: vocabulary by id, SPECIAL first.
        ids: ids of the text.
    """
    counts = np.bincount(ids, minlength=len(words))[len(SPECIAL) :].tolist()
    return estimate_spelling(dict(zip(words[len(SPECIAL) :], counts, strict=True)))


def spelling_log_probs(model: Sequence[NGrams], characters: Sequence[str], words: Sequence[str]) -> Array:
    """Return log10 of the probability of each word's spelling, including its end: (number of words,)."""
    known = {character: number for number, character in enumerate(characters)}
    ids = [(BOS, *(known.get(character, UNK) for character in word), EOS) for word in words]
    flat = np.fromiter(chain.from_iterable(ids), np.int64)
    scores = np.where(flat == BOS, 0.0, log_probs(model, flat, len(characters)))
    return np.bincount(np.repeat(np.arange(len(words)), [len(word) for word in ids]), scores, len(words))
