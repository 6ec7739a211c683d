"""Subwords as tokens, computed by the SentencePiece library."""

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import sentencepiece

from asr.base.settings.rule import one_of, whole
from asr.base.text.hidden_pieces import appended_ends, hidden_files, read_hidden, without_hidden
from asr.base.text.words import piece_of, text_of
from asr.components.tokenizer.reserved import without_reserved
from asr.components.tokenizer.subword_pieces import USER_DEFINED, SubwordPiece, piece_field
from asr.errors import InputError, one_line

FILE = "tokenizer.model"
UNKNOWN_ID = 1
MAX_PIECE = 1_000  # maximum number of characters of a piece; trained pieces have at most 16
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # represents a space in pieces
# Texts must not contain the names of the blank and the unknown piece, nor the characters that the library uses.
RESERVED = ("<blank>", "<unk>", SPACE, "\N{LOWER FIVE EIGHTHS BLOCK}")


class SentencePiece:
    """Unigram or BPE subwords, trained on the training text.

    *Source*: Kudo and Richardson 2018, arXiv:1808.06226; unigram: Kudo 2018, arXiv:1804.10959.

    Id 0 is CTC's blank (SentencePiece's padding piece). Id 1 is the unknown piece, which never occurs: a character that
    is not in the training text is an error. SentencePiece does not normalise texts, because `asr.base.text.normalize`
    has already normalised them.

    Args:
        algorithm: "unigram" or "bpe".
        vocab_size: number of ids, including blank and unknown.
    """

    def __init__(
        self, *, algorithm: Annotated[str, one_of("unigram", "bpe")], vocab_size: Annotated[int, whole(3, 1_000_000)]
    ) -> None:
        self.algorithm = algorithm
        self.vocab_size = vocab_size
        self._model = b""
        self._processor = sentencepiece.SentencePieceProcessor()
        self.names: list[str] = []
        self.pieces: list[str] = []
        self._hidden: list[int] = []

    def fit(self, texts: Iterable[str]) -> None:
        """Train on `texts`, with one thread, so that equal texts give identical files.

        Raises:
            InputError: the texts are too small for `vocab_size`; the message includes SentencePiece's error. Or a text
                contains a name of `RESERVED`.
        """
        model = io.BytesIO()
        with without_reserved(texts, RESERVED) as others:
            self._train(others, model)
        self.load({FILE: model.getvalue()})

    def _train(self, texts: Iterator[str], model: io.BytesIO) -> None:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=texts,
                model_writer=model,
                model_type=self.algorithm,
                vocab_size=self.vocab_size,
                character_coverage=1.0,
                normalization_rule_name="identity",
                max_sentence_length=1 << 20,  # bytes; with the default, SentencePiece would silently drop long lines
                pad_id=0,
                pad_piece=RESERVED[0],
                unk_id=UNKNOWN_ID,
                bos_id=-1,
                eos_id=-1,
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = one_line(error)
            raise InputError(
                f"tokenizer.vocab_size must suit the training text; got {self.vocab_size}. SentencePiece: {reason}"
            ) from None

    def encode(self, text: str) -> list[int]:
        """Split `text` into the most likely pieces.

        Raises:
            InputError: a character is not in the training text; the message names the character.
        """
        tokens = self._processor.encode(text)
        if UNKNOWN_ID in tokens:
            pieces = self._processor.encode(text, out_type=str)
            unknown = next(piece for piece, token in zip(pieces, tokens, strict=True) if token == UNKNOWN_ID)
            raise InputError(f"the tokenizer must cover every character; {unknown[0]!r} is not in the training text")
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Join pieces into text."""
        return text_of(tokens, self.pieces)

    @property
    def piece_scores(self) -> dict[str, float]:
        """The score of each piece, as SentencePiece writes pieces: a space is ▁."""
        processor = self._processor
        return {processor.id_to_piece(token): processor.get_score(token) for token in range(processor.vocab_size())}

    def files(self) -> dict[str, bytes]:
        """Return the trained tokenizer as the files that a bundle stores."""
        return {FILE: self._model} | hidden_files(self._hidden)

    @property
    def takes_words(self) -> bool:
        """True: `extend` takes pieces of several characters."""
        return True

    def extend(self, pieces: Sequence[str]) -> None:
        """Append pieces, with the next ids, that SentencePiece never splits and does not normalise."""
        lowest = min(self.piece_scores.values())  # for libraries that read the model as a table of pieces and scores
        appended = [SubwordPiece(piece.replace(" ", SPACE), lowest, USER_DEFINED) for piece in pieces]
        hidden = hidden_files([*self._hidden, *appended_ends(pieces, self.vocab_size)])
        self.vocab_size += len(pieces)
        self.load({FILE: b"".join([self._model, *map(piece_field, appended)]), **hidden})

    def load(self, files: dict[str, bytes]) -> None:
        """Restore the tokenizer from the output of `files`."""
        self._model = files[FILE]
        try:
            self._processor.load_from_serialized_proto(self._model)
        except RuntimeError:
            raise InputError(f"{FILE} must be a SentencePiece model; it is damaged.") from None
        if self._processor.vocab_size() != self.vocab_size:
            has = self._processor.vocab_size()
            raise InputError(f"tokenizer.vocab_size must be that of {FILE}, {has}; got {self.vocab_size}.")
        if any(len(self._processor.id_to_piece(token)) > MAX_PIECE for token in range(self.vocab_size)):
            raise InputError(f"{FILE} must hold pieces of at most {MAX_PIECE:,} characters; it holds a longer one.")
        self._hidden = read_hidden(files, self.vocab_size)
        others = [self._processor.id_to_piece(token).replace(SPACE, " ") for token in range(2, self.vocab_size)]
        self.names = ["", self._processor.decode([UNKNOWN_ID]), *others]
        self.pieces = without_hidden(
            [
                piece_of(bytes([int(name[3:5], 16)])) if self._processor.is_byte(token) else name
                for token, name in enumerate(self.names)
            ],
            self._hidden,
        )


def vocab_size_of(model: bytes) -> int:
    """Return the number of pieces of a SentencePiece model.

    Raises:
        InputError: the model is damaged.
    """
    try:
        return int(sentencepiece.SentencePieceProcessor(model_proto=model).vocab_size())
    except RuntimeError:
        raise InputError(f"{FILE} must be a SentencePiece model; it is damaged.") from None
