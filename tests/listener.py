"""A recogniser of tones that needs no training: its network has fixed weights and half a second of context.

Its features are real, with fixed normalisation. Tests of long recordings and streams can therefore compare its output
with the letters in the audio and their times.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from asr.base.text.normalize import basic
from asr.components.decode.greedy import Greedy
from asr.components.head.ctc import CTC
from asr.components.tokenizer.char import Char
from asr.core.build import build_features
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.interfaces import BLANK_ID, NO_TAPS, Decoder, Encoded, Head, NamedBlocks, Taps, Targets, Tokenizer
from asr.lengths import Lengths, padding_mask
from tests.conftest import resolved
from tests.tones import PITCHES

STRIDE = 4
LOUD = 19.0  # threshold of log-mel energy: noise reaches 16, a tone 25
SPACE_FRAMES = 5  # a silent frame fewer than this many frames after a letter is a space; later ones are a pause


class Ear(nn.Module):
    """Map features (B, T, 80) to scores of blank, space and letters (B, T', 8), by the energies at the pitches."""

    stride = STRIDE
    output_dim = 2 + len(PITCHES)
    streaming = None

    def __init__(self) -> None:
        super().__init__()
        mel = [1127 * torch.tensor(1 + pitch / 700).log() for pitch in (20.0, 8000.0, *PITCHES.values())]
        bins = torch.stack(mel[2:]).sub(mel[0]).div((mel[1] - mel[0]) / 81).sub(1).round()
        self.bins = nn.Parameter(bins, requires_grad=False)

    def named_blocks(self) -> NamedBlocks:
        return []

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        return -(-feature_lengths // STRIDE)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        energies = features[:, :, self.bins.long()]  # (B, T, letters)
        energies = energies.masked_fill(padding_mask(feature_lengths, features.shape[1])[..., None], 0.0)
        energies = nn.functional.pad(energies, (0, 0, 0, -features.shape[1] % STRIDE))
        letters = energies.unflatten(1, (-1, STRIDE)).amax(dim=2) - LOUD  # (B, T', letters)
        loud = letters.amax(dim=-1) > 0
        silent = ~(loud | _earlier(loud, 1) | _earlier(loud, -1))
        soon = torch.stack([_earlier(loud, number) for number in range(2, SPACE_FRAMES)]).any(dim=0)
        blank = torch.zeros_like(letters[..., :1])
        scores = torch.cat([blank, torch.where(silent & soon, 4.0, -8.0)[..., None], letters], dim=-1)
        return Encoded(scores, self.output_lengths(feature_lengths), {})


def _earlier(loud: Tensor, frames: int) -> Tensor:
    """Return, for each frame, whether the frame `frames` earlier is loud, (B, T'); False outside the utterance."""
    return nn.functional.pad(loud, (frames, -frames))


class LogSoftmax(nn.Module):
    """A head without weights: log_probs are the log_softmax of encoder_out."""

    loss_names = ()
    decoders = CTC.decoders
    taps = NO_TAPS

    @property
    def frame_head(self) -> "LogSoftmax":
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        return encoder_out.log_softmax(dim=-1)

    def losses(self, encoded: Encoded, targets: Targets) -> Mapping[str, Tensor]:
        raise NotImplementedError

    def min_frames(self, tokens: list[int]) -> int:
        return len(tokens)


MakeDecoder = Callable[[Head, Tokenizer, Callable[[str], str]], Decoder]


@functools.cache
def _config() -> dict[str, Any]:
    return {"features": resolved("features/normalize=global_cmvn")["features"]}


def listener(make_decoder: MakeDecoder = Greedy) -> Recognizer:
    """Make the recogniser of tones that this module describes; `make_decoder` makes its decoder."""
    tokenizer = Char()
    tokenizer.fit([" " + "".join(PITCHES)])
    features = build_features(_config())
    features.normalize.fit([torch.tensor([[-1.0], [1.0]]).expand(2, features.dim)])  # mean 0, deviation 1
    assert tokenizer.pieces[BLANK_ID + 1] == " "
    head = LogSoftmax()
    model = Model(basic, tokenizer, features, Ear(), head).eval()
    return Recognizer(model, make_decoder(head, tokenizer, basic), UNCALIBRATED)
