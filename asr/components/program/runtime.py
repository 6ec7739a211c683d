"""An encoder that runs an ONNX program, and a head that returns the log_probs of this program."""

from typing import TYPE_CHECKING

from torch import Tensor

from asr.base.kernels.ctc_loss import ctc_loss
from asr.base.kernels.token_mask import TokenMask
from asr.base.onnx.session import run_net
from asr.components.head.ctc import CTC
from asr.interfaces import NO_TAPS, Encoded, Encoder, NamedBlocks, Taps, Targets
from asr.lengths import Lengths

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxEncoder:
    """An encoder that runs an ONNX program on the CPU; encoder_out contains the inputs of the head's parts.

    For CTC, encoder_out contains log_probs (B, T', V). For a transducer, it contains the joiner's input; if the model
    also has a CTC head, log_probs follow.

    Args:
        session: runs the program.
        made_of: the encoder that was exported, with or without weights.
        output_dim: size of encoder_out per frame.
    """

    streaming = None

    def __init__(self, session: "InferenceSession", made_of: Encoder, output_dim: int) -> None:
        self._session = session
        self.output_dim = output_dim
        self.stride = made_of.stride
        self.output_lengths = made_of.output_lengths

    def named_blocks(self) -> NamedBlocks:
        """Return an empty list, because a program does not output the results of blocks."""
        return []

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with feature_lengths (B,)."""
        out, lengths = run_net(self._session, features, feature_lengths)
        return Encoded(out, lengths, {})


class LogProbs:
    """The frame head of an `OnnxEncoder`, whose output already contains log_probs.

    Args:
        vocab_size: number of tokens, V.
    """

    loss_names: tuple[str, ...] = ()
    taps = NO_TAPS
    decoders = CTC.decoders
    views = 1
    min_frames = staticmethod(CTC.min_frames)

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.mask = TokenMask()
        self.restrict = self.mask.restrict

    @property
    def frame_head(self) -> "LogProbs":
        """Return this object, because it computes log_probs for each frame."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """Return the last V values of encoder_out (B, T', ...): (B, T', V), given that no masked token is written."""
        return self.mask.log_probs(encoder_out[..., -self.vocab_size :])

    def losses(self, encoded: Encoded, targets: Targets) -> dict[str, Tensor]:
        """Compute -log p(tokens) of each utterance, (B,)."""
        return {"loss": ctc_loss(encoded.out[..., -self.vocab_size :], encoded.lengths, targets)}

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Return the number of elements of log_probs."""
        return frames * self.vocab_size
