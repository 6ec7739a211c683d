"""The shapes of the whole pipeline on one screen.

A component is whatever has these methods; it inherits from nothing of ours. Dimensions: S samples, T feature
frames, F mel bins, B utterances, U tokens, T' encoder frames, D encoder dimension, V vocabulary with blank.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from asr.lengths import Lengths

BLANK_ID = 0  # CTC's blank, in every tokenizer, head and decoder


class Tokenizer(Protocol):
    """Text to token ids and back. Ids are 1 .. vocab_size - 1; 0 is the blank."""

    vocab_size: int
    pieces: Sequence[str]  # what each id spells, "" for the blank; a space parts words

    def fit(self, texts: Iterable[str]) -> None: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Iterable[int]) -> str: ...
    def files(self) -> dict[str, bytes]: ...
    def load(self, files: dict[str, bytes]) -> None: ...


class Normalization(Protocol):
    """(T, F) to (T, F): the last step of the features."""

    def __call__(self, features: Tensor) -> Tensor: ...
    def fit(self, features: Iterable[Tensor]) -> None: ...
    def files(self) -> dict[str, bytes]: ...
    def load(self, files: dict[str, bytes]) -> None: ...


class Features(Protocol):
    """One waveform (S,) to one utterance's features (T, F)."""

    dim: int  # F
    sample_rate: int
    window: int  # samples of a frame
    hop: int  # samples from one frame to the next
    normalize: Normalization

    def __call__(self, waveform: Tensor) -> Tensor: ...
    def energies(self, waveform: Tensor) -> Tensor: ...
    def num_frames(self, num_samples: Lengths) -> Lengths: ...


class Augment(Protocol):
    """One utterance's features (T, F) changed at random, drawing from torch's CPU generator."""

    def __call__(self, features: Tensor) -> Tensor: ...


class Subsampling(Protocol):
    """(B, T, F), (B,) to (B, T', D), (B,)."""

    stride: int  # feature frames a step of T'

    def __call__(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]: ...
    def output_lengths(self, feature_lengths: Lengths) -> Lengths: ...


class MaskedNorm(Protocol):
    """(B, T', D), padding_mask (B, T') to (B, T', D)."""

    def __call__(self, x: Tensor, padding_mask: Tensor) -> Tensor: ...


class Encoder(Protocol):
    """Features (B, T, F), feature_lengths (B,) to encoder_out (B, T', D), encoder_out_lengths (B,)."""

    output_dim: int  # D
    stride: int  # feature frames an encoder frame

    def __call__(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]: ...
    def output_lengths(self, feature_lengths: Lengths) -> Lengths: ...


class Head(Protocol):
    """encoder_out (B, T', D) to log_probs (B, T', V), and the loss of each utterance (B,)."""

    def __call__(self, encoder_out: Tensor) -> Tensor: ...
    def losses(self, log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor: ...
    def min_frames(self, tokens: list[int]) -> int: ...


class Hypothesis(NamedTuple):
    """One reading of an utterance, and its score as the decoder ranks it (natural logarithm)."""

    tokens: list[int]
    score: float


class Decoder(Protocol):
    """log_probs (B, T', V), encoder_out_lengths (B,) to each utterance's hypotheses, at least one, the best first."""

    def __call__(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]: ...


class Moment(NamedTuple):
    """Where a run is, before an optimizer step.

    Args:
        step: of the optimizer, from 0.
        total_steps: of the whole run.
        epoch: passes over the training data that are done, the part of the present one included.
    """

    step: int
    total_steps: int
    epoch: float


class Schedule(Protocol):
    """Where a run is to the factor that the learning rate is multiplied by."""

    def __call__(self, moment: Moment) -> float: ...


class OptimizerMaker(Protocol):
    """The parameters that are trained, by name, to their optimizer; groups of them may have settings of their own."""

    def __call__(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer: ...
