"""One list of the pieces of several SentencePiece models, each for a language."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Annotated

from asr.base.settings.rule import Rule, list_of
from asr.base.text.hidden_pieces import hidden_files, read_hidden, without_hidden
from asr.base.text.words import text_of
from asr.components.tokenizer.sentencepiece import FILE, SentencePiece, vocab_size_of
from asr.errors import InputError, shown

LANGUAGE = Rule(
    "a name of a language, such as de or de-DE",
    lambda value: isinstance(value, str) and value.replace("-", "").replace("_", "").isalnum() and value.isascii(),
)


class Aggregate:
    """The pieces of a SentencePiece model for each language, one model after the other, with offsets.

    Tokens of all languages decode alike. `encoders` encode the texts of one language. `encode`, for texts whose
    language is not known, such as hotwords, takes the first language that has all characters. A model with this
    tokenizer comes from a conversion: `fit` refuses.

    *Source*: NeMo's AggregateTokenizer.

    Args:
        languages: names of the languages, in the order of their pieces.
    """

    piece_scores: Mapping[str, float] = MappingProxyType({})
    takes_words = True

    def __init__(
        self, *, languages: Annotated[list[str], list_of(LANGUAGE, "of languages, such as [de, en]", 1)]
    ) -> None:
        if twice := [language for language, number in Counter(languages).items() if number > 1]:
            raise InputError(f"tokenizer.languages must have each language once; got {shown(twice[0])} twice.")
        self.languages = languages
        self.vocab_size = 1
        self.names: list[str] = []
        self.pieces: list[str] = []
        self.encoders: dict[str, Callable[[str], list[int]]] = {}
        self._files: dict[str, bytes] = {}
        self._hidden: list[int] = []

    def fit(self, texts: Iterable[str]) -> None:
        """Refuse: there is no model for each language.

        Raises:
            InputError: always.
        """
        must = "tokenizer must be one that can be fitted to training texts"
        raise InputError(f"{must}; got aggregate, which converted models have. Give init.from, or another tokenizer.")

    def encode(self, text: str) -> list[int]:
        """Encode a text by the first language that has all its characters.

        Raises:
            InputError: no language has them.
        """
        refusals = []
        for encoder in self.encoders.values():
            try:
                return encoder(text)
            except InputError as error:
                refusals.append(error)
        raise refusals[0]

    def decode(self, tokens: Iterable[int]) -> str:
        """Join pieces into text."""
        return text_of(tokens, self.pieces)

    def files(self) -> dict[str, bytes]:
        """Return the models as the files that a bundle stores."""
        return self._files | hidden_files(self._hidden)

    def extend(self, pieces: Sequence[str]) -> None:
        """Refuse: the language of the pieces is not known.

        Raises:
            InputError: always.
        """
        cure = "Cut one language out: asr.convert --language"
        raise InputError(f"pieces must be appended to the tokenizer of one language; this one has several. {cure}.")

    def load(self, files: dict[str, bytes]) -> None:
        """Restore the tokenizer from the output of `files`."""
        self._files = {file_of(language): files[file_of(language)] for language in self.languages}
        names, spelled = [""], [""]
        of_languages: list[list[str]] = []
        self.encoders = {}
        for language, model in zip(self.languages, self._files.values(), strict=True):
            own = SentencePiece(algorithm="unigram", vocab_size=vocab_size_of(model))  # a model knows its algorithm
            own.load({FILE: model})
            self.encoders[language] = partial(_encode, own, len(names) - 1)
            names += own.names[1:]
            spelled += own.pieces[1:]
            of_languages.append(own.names[1:])
        common = {name for name, number in Counter(names).items() if number > 1}
        self.names = [""]
        for language, own_names in zip(self.languages, of_languages, strict=True):
            self.names += [f"{name}<{language}>" if name in common else name for name in own_names]
        self.vocab_size = len(names)
        self._hidden = read_hidden(files, self.vocab_size)
        self.pieces = without_hidden(spelled, self._hidden)


def file_of(language: str) -> str:
    """Return the name of the file with a language's model."""
    return f"{language}.{FILE}"


def _encode(own: SentencePiece, offset: int, text: str) -> list[int]:
    return [token + offset for token in own.encode(text)]
