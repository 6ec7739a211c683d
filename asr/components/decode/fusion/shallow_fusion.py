"""Shallow fusion: scores of language model, lexicon and hotwords, added to hypotheses token by token."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Annotated, Any

from asr.base.language_model.kenlm import NgramModel
from asr.base.language_model.spelling import SpellingModel, is_alphabet
from asr.base.language_model.token_histories import TokenHistories
from asr.base.settings.conf import default_settings
from asr.base.settings.rule import TEXT, number, one_of, or_null
from asr.base.text.words import BYTE, joined_bytes
from asr.components.decode.fusion.hotwords import NOWHERE, Matcher, Matches, compiled, read_phrases
from asr.components.decode.fusion.lexicon import AnyOf, Words, writable
from asr.errors import InputError
from asr.interfaces import NO_BIASING, Biasing, Biasings, Tokenizer, Tunable

Path = Annotated[str | None, or_null(TEXT)]
Score = Annotated[float, number(-1_000, 1_000)]  # natural logarithm
Bonus = Annotated[float, number(0, 1_000)]

# Values that asr.tune tries.
LM_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)
WORD_INSERTION_BONUSES = (-1.0, 0.0, 1.0, 2.0, 3.0, 4.0)
UNKNOWN_SCORES = (-10.0, -6.0, -4.0, -2.0, 0.0)

NEVER = -math.inf
PAID = object()  # spelling state of an unknown word whose constant score has already been added
WHITE_SPACE = re.compile(r"\s")

# State of a hypothesis that determines later scores: characters of the current word ("" between words); spelling state
# of an unknown word (None while the characters begin a known word); language-model state; positions in hotwords.
Context = tuple[str, Any, Any, Matches]


class ShallowFusion:
    """Score hypotheses, token by token, with language model, lexicon, hotwords and word insertion bonus.

    A word may consist of any sequence of tokens; it ends at a space or at the end of the utterance.

    *Source*: Gulcehre et al. 2015, arXiv:1503.03535, section 4.1; word insertion bonus: Hannun et al. 2014,
    arXiv:1408.2873.

    Args:
        tokenizer: its pieces spell the words.
        lm: path of an n-gram language model (ARPA or KenLM binary) or of a neural language model; None:
            no language model.
        lm_unit: "word", or "token" for a model made by `asr.ngram --tokens`; neural models are over tokens.
        lm_weight: factor of the language model's log-probability.
        word_insertion_bonus: added per word, to offset the language model's preference for few words; without a
            language model it is not added.
        unknown_score: added per word that is in neither language model, lexicon nor hotwords (natural logarithm);
            not used with a spelling model.
        spelling: path of a spelling model (`asr.ngram --spelling`): an unknown word has the language model's
            probability of <unk> times the probability of its spelling; None: unknown_score is added instead.
        lexicon: path of a list of allowed words, one per line, or of an ARPA model with these words; None: all words
            are allowed.
        hotwords: path of a list of phrases, one per line; None: no hotwords.
        hotword_score: bonus for each word of a phrase (natural logarithm).

    Raises:
        InputError: a file cannot be used.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        lm: Annotated[str | TokenHistories | None, or_null(TEXT)],
        lm_unit: Annotated[str, one_of("word", "token")],
        lm_weight: Bonus,
        word_insertion_bonus: Score,
        unknown_score: Score,
        spelling: Path,
        lexicon: Path,
        hotwords: Path,
        hotword_score: Bonus,
    ) -> None:
        model = NgramModel(lm) if isinstance(lm, str) else None
        if model is not None:
            _check_spelling(model, str(lm), lm_unit, tokenizer, normalize)
        self._neural = None if isinstance(lm, str) else lm  # loaded by asr.core.build
        names = [token_name(name) for name in tokenizer.names]
        self._names: Sequence[Any] = names if self._neural is None else range(tokenizer.vocab_size)
        self._parts = [
            WHITE_SPACE.split(piece) for piece in tokenizer.pieces
        ]  # per token: its characters in the current word, then those in each following word
        self._most_parts = max(map(len, self._parts))
        self._has_bytes = any(BYTE.search(piece) for piece in tokenizer.pieces)
        self.token_model: Any = self._neural or (model if lm_unit == "token" else None)
        self.word_model = model if lm_unit == "word" else None
        self._spelling = tokenizer, normalize
        self.hotword_score = hotword_score
        self.biasing = self.compile_hotwords(read_phrases(hotwords)) if hotwords else NO_BIASING
        self._matcher = Matcher(self.biasing.lists)
        own = [word for phrases in self.biasing.lists for word in phrases.words]
        self.lexicon = Words([*writable(lexicon, tokenizer, normalize), *own]) if lexicon else None
        self.lm_weight = lm_weight
        self.word_insertion_bonus = word_insertion_bonus
        if spelling and self.word_model is None:
            must = "--spelling (decode.fusion.spelling) must be used with a language model of words"
            given = "a neural model" if self._neural is not None else f"{lm}, of {lm_unit}s" if lm else "none"
            raise InputError(f"{must}; got {given}. Leave out --spelling, or pass a model of words as --lm.")
        self.spelling = SpellingModel(spelling) if spelling else None
        if self.lexicon is not None:
            known, self.unknown_score = self.lexicon, NEVER
        elif self.word_model is not None:
            known, self.unknown_score = Words([*self.word_model.words, *own]), unknown_score
        else:
            known, self.unknown_score = Words([]), 0.0
        self._known: Words | AnyOf = known

    def compile_hotwords(self, phrases: Iterable[str], score: float | None = None) -> Biasing:
        """Compile phrases for this fusion; None: its own `hotword_score`."""
        return compiled(phrases, self.hotword_score if score is None else score, *self._spelling)

    def of_utterances(self, number: int, biasings: Biasings, values: Mapping[str, float]) -> list["ShallowFusion"]:
        """Return the fusion for each utterance of a batch: with its hotwords, and values of tunable settings."""
        fusion = self.weighed(**values)
        return [fusion.biased(biasing) for biasing in biasings or [NO_BIASING] * number]

    def biased(self, biasing: Biasing) -> "ShallowFusion":
        """Return a copy that prefers further phrases, or this object if there are none."""
        if not biasing.lists:
            return self
        other = copy(self)
        other._matcher = Matcher([*self.biasing.lists, *biasing.lists])
        if self.lexicon is not None or self.word_model is not None:  # else no word is unknown
            other._known = AnyOf([self._known, *(phrases.words for phrases in biasing.lists)])
        return other

    @property
    def has_model(self) -> bool:
        """Whether there is a language model."""
        return self.token_model is not None or self.word_model is not None

    @property
    def tunable(self) -> dict[str, Tunable]:
        """Language-model weight, word insertion bonus, and unknown_score if it is used; {} without a language model."""
        if not self.has_model:
            return {}
        tunable = {
            "lm_weight": Tunable(self.lm_weight, LM_WEIGHTS),
            "word_insertion_bonus": Tunable(self.word_insertion_bonus, WORD_INSERTION_BONUSES),
        }
        if self.word_model is not None and self.lexicon is None and self.spelling is None:
            tunable["unknown_score"] = Tunable(self.unknown_score, UNKNOWN_SCORES)
        return tunable

    def describe(self, search: str) -> str:
        """Return a search's description for logs: `search` and the models in use."""
        parts = [search, *([f"language model, weight {self.lm_weight:g}"] if self.has_model else [])]
        parts += ["lexicon"] if self.lexicon is not None else []
        count = len(self.biasing.phrases)
        return ", ".join([*parts, f"{count} hotwords"] if count else parts)

    def weighed(self, **weights: float) -> "ShallowFusion":
        """Return a copy with these values of tunable settings; names that are not tunable are ignored."""
        other = copy(self)
        vars(other).update({name: weights[name] for name in self.tunable if name in weights})
        return other

    def at_most(self) -> list[float]:
        """Return an upper bound of the gain of each token."""
        return [self._at_most(len(parts)) for parts in self._parts]

    def most(self) -> float:
        """Return an upper bound of the gain of any token."""
        return self._at_most(self._most_parts)

    def _at_most(self, num_parts: int) -> float:
        anywhere = self._matcher.most + max(self.unknown_score, 0.0)
        ending = max(self.word_insertion_bonus, 0.0) if self.has_model else 0.0
        return num_parts * anywhere + (num_parts - 1) * ending

    def start(self) -> Context:
        """Return the context of an empty hypothesis."""
        model = self.token_model or self.word_model
        return "", None, model.start() if model else None, NOWHERE

    @staticmethod
    def provisional(context: Context) -> float:
        """Return the bonus of an unfinished phrase, which a token that leaves the phrase subtracts again."""
        return context[3].bonus

    def read(self, contexts: Iterable[Context]) -> None:
        """Evaluate a neural language model for new contexts, in one batch, before any of them is extended or ended."""
        if self._neural is not None:
            self._neural.read(history for _, _, history, _ in contexts)

    def extend(self, context: Context, token: int) -> tuple[Context, float] | None:
        """Append a token; return the new context and the gain. None: no allowed word begins with these characters."""
        word, spelled, history, matches = context
        gain = 0.0
        for index, part in enumerate(self._parts[token]):
            if index and word:
                ended = self._end_word(word, spelled, history, matches)
                if ended is None:
                    return None
                history, matches, bonus = ended
                word, spelled, gain = "", None, gain + bonus
            if not part:
                continue
            if matches.open or not word:
                matches, bonus = self._matcher.spell(matches, part, begins_word=not word)
                gain += bonus
            word = joined_bytes(word + part) if self._has_bytes else word + part
            if spelled is not None:
                score, spelled = self._spell(spelled, part)
                gain += score
            # An unknown word is scored as soon as no known word begins with it.
            elif word not in self._known.beginnings and not (self._has_bytes and BYTE.search(word)):
                score, spelled = self._spell(None, word)
                gain += score
        if gain == NEVER:
            return None
        if self.token_model is not None:
            log_prob, history = self.token_model.score(history, self._names[token])
            gain += self.lm_weight * log_prob
        return (word, spelled, history, matches), gain

    def finish(self, context: Context) -> float | None:
        """Return the gain from ending a hypothesis; None if its last word is not in the lexicon."""
        word, spelled, history, matches = context
        gain = 0.0
        if word:
            ended = self._end_word(word, spelled, history, matches)
            if ended is None:
                return None
            history, matches, gain = ended
        model = self.token_model or self.word_model
        if model is not None:
            gain += self.lm_weight * model.end(history)
        return gain - matches.bonus

    def _end_word(self, word: str, spelled: Any, history: Any, matches: Matches) -> tuple[Any, Matches, float] | None:
        unknown = 0.0
        if spelled is None and word not in self._known:
            unknown, spelled = self._spell(None, word)
        if unknown == NEVER:
            return None
        if spelled is not None and self.spelling is not None:
            unknown += self.lm_weight * self.spelling.end(spelled)
        matches, gain = self._matcher.end_word(matches)
        gain += unknown
        if self.has_model:
            gain += self.word_insertion_bonus
        if self.word_model is not None:
            log_prob, history = self.word_model.score(history, word)
            gain += self.lm_weight * log_prob
        return history, matches, gain

    def _spell(self, spelled: Any, characters: str) -> tuple[float, Any]:
        """Score more characters of an unknown word (the first if `spelled` is None); return score and new state."""
        if self.spelling is None or self.lexicon is not None:
            return (self.unknown_score if spelled is None else 0.0), PAID
        log_prob, spelled = self.spelling.extend(self.spelling.start() if spelled is None else spelled, characters)
        return self.lm_weight * log_prob, spelled


FusionMaker = Callable[[Tokenizer, Callable[[str], str]], ShallowFusion]  # given tokenizer and normaliser


def only_hotwords(tokenizer: Tokenizer, normalize: Callable[[str], str]) -> ShallowFusion:
    """Make the fusion of a decoder without settings for it: the hotwords of requests, with conf's bonus."""
    settings = default_settings("decode/fusion", "shallow_fusion")
    return ShallowFusion(tokenizer, normalize, **{key: value for key, value in settings.items() if key != "name"})


def token_name(piece: str) -> str:
    """Return a token's name in language models over tokens; such names must not contain spaces."""
    return piece.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}")


def _check_spelling(
    model: NgramModel, path: str, unit: str, tokenizer: Tokenizer, normalize: Callable[[str], str]
) -> None:
    """Check that a language model's entries can occur in texts, unlike words in capitals or another model's tokens."""
    must = f"{path}: the entries of a language model must be"
    if is_alphabet(model.words):
        given = f"{unit}s; all {len(model.words)} are single characters, as in a model of spellings"
        raise InputError(
            f"{must} {given}. Pass it as --spelling (decode.fusion.spelling), and a model of words as --lm."
        )
    if unit == "token":
        names = {token_name(name) for name in tokenizer.names}
        fitting, expected = sum(word in names for word in model.words), "tokens of the recogniser"
        cure = "Leave out --lm-unit token (decode.fusion.lm_unit=word), or make the model with asr.ngram --tokens MODEL"
    else:
        expected, cure = "words as the normaliser writes them", "Make the model from normalised text (asr.ngram)"
        fitting = sum(token_name(" ") not in word and normalize(word) == word for word in model.words)
        if any(token_name(" ") in word for word in model.words):  # a model over tokens, even if many of them are words
            fitting, cure = 0, "The model is over tokens: pass --lm-unit token (decode.fusion.lm_unit=token)"
    if fitting < len(model.words) / 2:
        raise InputError(f"{must} {expected}; only {fitting:,} of its {len(model.words):,} entries are. {cure}.")
