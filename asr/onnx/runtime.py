"""A program run by ONNX Runtime, as an encoder whose encoder_out are log_probs."""

from typing import TYPE_CHECKING

from torch import Tensor, nn

from asr.head.ctc import CTC, ctc_loss
from asr.interfaces import NO_TAPS, Encoded, Encoder, Taps
from asr.lengths import Lengths
from asr.onnx.session import run_net

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxEncoder:
    """Features (B, T, F), feature_lengths (B,) to what the head's parts take, as encoder_out; on the processor.

    For CTC these are log_probs (B, T', V); for a transducer the joiner's input, followed by log_probs if there is a CTC
    head.

    Args:
        session: runs the program.
        made_of: the encoder that was exported, which needs no weights.
        output_dim: numbers of a frame.
    """

    blocks = nn.ModuleList()  # none can be tapped
    streaming = None

    def __init__(self, session: "InferenceSession", made_of: Encoder, output_dim: int) -> None:
        self._session = session
        self.output_dim = output_dim
        self.stride = made_of.stride
        self.output_lengths = made_of.output_lengths

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """As above."""
        out, lengths = run_net(self._session, features, feature_lengths)
        return Encoded(out, lengths, {})


class LogProbs:
    """The head of such an encoder, a frame head that has nothing to compute.

    Args:
        vocab_size: V.
    """

    loss_names: tuple[str, ...] = ()
    taps = NO_TAPS
    views = 1
    min_frames = staticmethod(CTC.min_frames)

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @property
    def frame_head(self) -> "LogProbs":
        """Itself."""
        return self

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """encoder_out (B, T', ...) to its last V numbers, (B, T', V)."""
        return encoder_out[..., -self.vocab_size :]

    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> dict[str, Tensor]:
        """Compute -log p(tokens) of each utterance, (B,)."""
        return {"loss": ctc_loss(self.log_probs(encoded.out), tokens, encoded.lengths, token_lengths)}

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Numbers in log_probs."""
        return frames * self.vocab_size
