"""A lock on letters: a head gives tokens with other letters no probability, so that no decoder writes them."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.text.alphabets import Alphabet, find_alphabet, letters_of, units
from asr.base.text.hidden_pieces import LANGUAGE_TAG
from asr.base.text.words import BYTE
from asr.errors import InputError
from asr.interfaces import (
    BLANK_ID,
    Cache,
    Encoded,
    Forced,
    FrameHead,
    Head,
    JointNetwork,
    Memory,
    Taps,
    Targets,
    TokenDecoder,
    Tokenizer,
)
from asr.lengths import Lengths


def locked(head: Head, tokenizer: Tokenizer, characters: str) -> Head:
    """Return a head that writes only the letters of a language or of a script.

    Args:
        head: any head; it is not changed.
        tokenizer: its pieces are the texts of the tokens.
        characters: name of the language or of the script, as for `asr.base.text.alphabets.find_alphabet`.
    """
    alphabet = find_alphabet(characters)
    allowed = allowed_tokens(tokenizer, alphabet)
    pieces = [piece for piece, is_allowed in zip(tokenizer.pieces, allowed, strict=True) if is_allowed]
    written = alphabet.base & units(letter for piece in pieces for letter in letters_of(piece))
    if 2 * len(written) < len(alphabet.base):
        must = "characters must be a language or script of which the model's tokens write at least half of the letters"
        given = f"{characters}, of whose {len(alphabet.base):,} letters they write {len(written):,}"
        raise InputError(f"{must}; got {given}. Choose the language or script of the model's texts.")
    return with_tokens(head, allowed)


def allowed_tokens(tokenizer: Tokenizer, alphabet: Alphabet) -> list[bool]:
    """Return whether each token may be written, (V,).

    Digits, punctuation, spaces, marks and the blank may. A byte of a longer character may not, because it can be part
    of any letter. Hidden pieces may not, except the language tags that a transcript's language is read from.
    """
    return [
        token == BLANK_ID or (_is_written(piece, alphabet) if piece else LANGUAGE_TAG.fullmatch(name) is not None)
        for token, (piece, name) in enumerate(zip(tokenizer.pieces, tokenizer.names, strict=True))
    ]


def _is_written(piece: str, alphabet: Alphabet) -> bool:
    return not BYTE.search(piece) and all(map(alphabet.has, letters_of(piece)))


def with_tokens(head: Head, allowed: Sequence[bool]) -> Head:
    """Return a head that writes only the allowed tokens, (V,); the head itself if all tokens are allowed."""
    return head if all(allowed) else LockedHead(head, allowed)


class TokenMask(nn.Module):
    """Set the scores of tokens to minus infinity.

    Args:
        allowed: whether the score of each token stays, (V,).
    """

    masked: Tensor

    def __init__(self, allowed: Iterable[bool]) -> None:
        super().__init__()
        self.register_buffer("masked", ~torch.tensor([*allowed]), persistent=False)

    def forward(self, scores: Tensor) -> Tensor:
        """Mask scores (..., V), or (..., V + number of durations)."""
        return scores.masked_fill(F.pad(self.masked, (0, scores.shape[-1] - len(self.masked))), -math.inf)


class LockedHead(nn.Module):
    """A head whose outputs are masked before any search.

    Log_probs are those given that no masked token is written: they are normalised again, because a confidence is
    computed from a distribution. The taps and losses do not change, so self-conditioning sees all tokens.

    Args:
        head: the head.
        allowed: whether each token may be written, (V,); the blank must be allowed.
    """

    def __init__(self, head: Head, allowed: Sequence[bool]) -> None:
        super().__init__()
        self.head = head
        self.mask = TokenMask(allowed)
        self.loss_names, self.decoders, self.views = head.loss_names, head.decoders, head.views
        joiner, token_decoder = getattr(head, "joiner", None), getattr(head, "token_decoder", None)
        self.joiner = None if joiner is None else LockedJoiner(joiner, self.mask)
        self.token_decoder = None if token_decoder is None else LockedTokenDecoder(token_decoder, self.mask)
        self.durations: tuple[int, ...] = getattr(head, "durations", ())

    @property
    def taps(self) -> Taps:
        """The taps of the head, which see all tokens."""
        return self.head.taps

    @property
    def predictor(self) -> Any:
        """The prediction network of a transducer; None: the head has none."""
        return getattr(self.head, "predictor", None)

    @property
    def frame_head(self) -> "LockedHead | None":
        """This object if the head has a frame head."""
        return None if self.head.frame_head is None else self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """Map encoder_out (B, T', D) to log_probs (B, T', V); the head must have a frame head."""
        log_probs: Tensor = self.mask(cast(FrameHead, self.head.frame_head).log_probs(encoder_out))
        return log_probs.log_softmax(dim=-1)

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute the losses of the head, which see all tokens."""
        return dict(self.head.losses(encoded._replace(log_probs=None), targets))

    def min_frames(self, tokens: list[int]) -> int:
        """Minimum number of frames for `tokens`."""
        return self.head.min_frames(tokens)

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Number of elements of the head's largest tensor."""
        return self.head.cells(frames, tokens)


class LockedJoiner:
    """A joiner whose logits are masked; the search normalises them."""

    def __init__(self, joiner: JointNetwork, mask: TokenMask) -> None:
        self._joiner, self._mask = joiner, mask
        self.of_frames, self.of_tokens = joiner.of_frames, joiner.of_tokens

    def __call__(self, frames: Tensor, tokens: Tensor) -> Tensor:
        """Map (..., J) and (..., J) to logits (..., V), or (..., V + number of durations)."""
        logits: Tensor = self._mask(self._joiner(frames, tokens))
        return logits


class LockedTokenDecoder:
    """A token decoder whose log_probs are masked and normalised again."""

    def __init__(self, decoder: TokenDecoder, mask: TokenMask) -> None:
        self._decoder, self._mask = decoder, mask
        self.remember, self.start = decoder.remember, decoder.start

    def __call__(self, tokens: Tensor, memory: Memory, cache: Cache) -> tuple[Tensor, Cache]:
        """Return log_probs (N, U, V) of each next token, and the extended cache."""
        log_probs, cache = self._decoder(tokens, memory, cache)
        return self._mask(log_probs).log_softmax(dim=-1), cache

    def force(self, tokens: Tensor, token_lengths: Tensor, memory: Memory) -> Forced:
        """Predict tokens (N, U), (N,) and the end of each sequence in one pass."""
        forced = self._decoder.force(tokens, token_lengths, memory)
        return forced._replace(log_probs=self._mask(forced.log_probs).log_softmax(dim=-1))
