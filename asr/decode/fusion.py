"""Shallow fusion: what a beam search adds to the acoustic score of a hypothesis, token by token."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from asr.decode.hotwords import NOWHERE, Matches, Phrases
from asr.decode.kenlm import NgramModel
from asr.decode.lexicon import Words


class Context(NamedTuple):
    """What matters of a hypothesis for the score of what follows it.

    Args:
        word: characters of the word that has begun; "" between words.
        history: the language model's.
        matches: hotwords that have begun.
    """

    word: str
    history: Any
    matches: Matches


class ShallowFusion:
    """Language model, lexicon, hotwords and word score in one, over the characters that tokens spell.

    Words may be spelled by any tokens; a word ends where a space follows, or the utterance ends.

    *Source*: Gulcehre et al. 2015, arXiv:1503.03535, section 4.1; word score: Hannun et al. 2014, arXiv:1408.2873.

    Args:
        pieces: what each token id spells.
        model: the language model, if there is one.
        over_tokens: whether it is over tokens (named as `asr.ngram --tokens` does), or else over words.
        lexicon: the words there are; None: any.
        hotwords: phrases with a bonus.
        lm_weight: factor of the language model's log-probability.
        word_score: added for each word that the language model weighs (natural logarithm).
        unknown_score: added for each word that neither model, lexicon nor hotwords know.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        model: NgramModel | None,
        over_tokens: bool,
        lexicon: Words | None,
        hotwords: Phrases,
        lm_weight: float,
        word_score: float,
        unknown_score: float,
    ) -> None:
        self.pieces = pieces
        self.token_model = model if over_tokens else None
        self.word_model = None if over_tokens else model
        self.lexicon = lexicon
        self.hotwords = hotwords
        self.lm_weight = lm_weight
        self.word_score = word_score
        self.unknown_score = unknown_score
        all_known = self.word_model is None or lexicon is not None
        self._known = None if all_known or model is None else Words([*model.words, *hotwords.words])

    @property
    def has_model(self) -> bool:
        """Whether there is a language model to be weighed."""
        return self.token_model is not None or self.word_model is not None

    def start(self) -> Context:
        """Begin a hypothesis."""
        model = self.token_model or self.word_model
        return Context("", model.start() if model else None, NOWHERE)

    def extend(self, context: Context, token: int) -> tuple[Context, float] | None:
        """Append a token; return the new context and what the hypothesis gains. None: no word begins so."""
        word, history, matches = context
        gain = 0.0
        for character in self.pieces[token]:
            if not character.isspace():
                matches, bonus = self.hotwords.spell(matches, character, begins_word=not word)
                gain += bonus
                if self._is_open(word) and not self._is_open(word + character):
                    gain += self.unknown_score
                word += character
            elif word:
                ended = self._end_word(word, history, matches)
                if ended is None:
                    return None
                history, matches, bonus = ended
                word, gain = "", gain + bonus
        if word and self.lexicon is not None and not self.lexicon.has_beginning(word):
            return None
        if self.token_model is not None:
            log_prob, history = self.token_model.score(history, token_name(self.pieces[token]))
            gain += self.lm_weight * log_prob
        return Context(word, history, matches), gain

    def finish(self, context: Context) -> float | None:
        """Say what a hypothesis gains by ending here. None: it ends within a word that is in no lexicon."""
        word, history, matches = context
        gain = 0.0
        if word:
            ended = self._end_word(word, history, matches)
            if ended is None:
                return None
            history, matches, gain = ended
        model = self.token_model or self.word_model
        if model is not None:
            gain += self.lm_weight * model.end(history)
        return gain - matches.bonus

    def _end_word(self, word: str, history: Any, matches: Matches) -> tuple[Any, Matches, float] | None:
        if self.lexicon is not None and word not in self.lexicon:
            return None
        matches, gain = self.hotwords.end_word(matches)
        if self.has_model:
            gain += self.word_score
        if self.word_model is not None:
            log_prob, history = self.word_model.score(history, word)
            gain += self.lm_weight * log_prob
        if self._known is not None and word not in self._known and self._is_open(word):
            gain += self.unknown_score
        return history, matches, gain

    def _is_open(self, beginning: str) -> bool:
        """Tell whether a word may yet be known; as soon as it cannot, it has the score of an unknown one."""
        return self._known is None or not beginning or self._known.has_beginning(beginning)


def token_name(piece: str) -> str:
    """Name a token as language models over tokens do, which know no spaces."""
    return piece.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")
