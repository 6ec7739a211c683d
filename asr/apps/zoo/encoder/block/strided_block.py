"""A Conformer's block that can halve the frame rate."""

from torch import Tensor

from asr.apps.zoo.encoder.subsampling.stacked_frames import grouped
from asr.components.encoder.block.conformer_block import ConformerBlock

STRIDE = 2


class StridedBlock(ConformerBlock):
    """A `ConformerBlock` whose `stride` its encoder may set to 2, so that its output has half of the frames.

    In the convolution's residual connection, each two frames become their mean. T' = floor(T / 2), but at least 1.

    *Source*: Burchi and Vielzeuf 2021 (Efficient Conformer), arXiv:2109.01163, section 3.1; transformers'
    GraniteSpeech5EncoderLayer, whose residual connection is the mean of two frames.

    *Differs from the source*: the convolution is computed at all frames, of which every other is taken, so that any
    convolution module fits. Only a batch norm's statistics in training differ: they cover all frames.
    """

    def add_convolution(self, x: Tensor, branch: Tensor) -> Tensor:
        """Add the convolution module's output to its input."""
        if self.stride == 1:
            return super().add_convolution(x, branch)
        return grouped(x, STRIDE).mean(dim=2) + self.dropout(grouped(branch, STRIDE)[:, :, 0])
