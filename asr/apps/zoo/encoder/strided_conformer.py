"""A Conformer whose first blocks halve the frame rate."""

from collections.abc import Callable, Sequence
from typing import Annotated

from torch import Tensor, nn

from asr.apps.zoo.encoder.block.strided_block import STRIDE, StridedBlock
from asr.base.settings.rule import Dim, Layers, whole
from asr.components.encoder.conformer import Conformer, LastNorm
from asr.components.encoder.stack import run_blocks, with_blocks
from asr.errors import InputError
from asr.interfaces import NO_TAPS, ConformerPart, Encoded, Subsampling, Taps
from asr.lengths import Lengths, padding_mask


class StridedConformer(Conformer):
    """A `Conformer` whose first blocks have stride 2, so that the other blocks see fewer frames.

    *Source*: Burchi and Vielzeuf 2021 (Efficient Conformer), arXiv:2109.01163, section 3.1; transformers'
    GraniteSpeech5Encoder.

    Args, in addition to those of `Conformer`:
        num_strided_layers: number of blocks with stride 2.

    Raises:
        InputError: there are more strided blocks than blocks, or the blocks cannot have a stride.
    """

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        num_strided_layers: Annotated[int, whole(0, 10)],
        last_norm: LastNorm,
        subsampling: Callable[[int, int], Subsampling],
        block: Callable[[int], ConformerPart],
    ) -> None:
        super().__init__(
            input_dim, dim=dim, num_layers=num_layers, last_norm=last_norm, subsampling=subsampling, block=block
        )
        if num_strided_layers > num_layers:
            must = "encoder.num_strided_layers must be at most encoder.num_layers"
            raise InputError(f"{must}; got {num_strided_layers} and {num_layers}.")
        self.num_strided_layers = num_strided_layers
        self.stride *= STRIDE**num_strided_layers
        for strided in [*self.blocks][:num_strided_layers]:
            if not isinstance(strided, StridedBlock):
                must = "encoder.block must be strided_block with encoder.num_strided_layers"
                raise InputError(f"{must}={num_strided_layers}; got {type(strided).__name__}.")
            strided.stride = STRIDE

    def output_lengths(self, feature_lengths: Lengths) -> Lengths:
        """Return the number of encoder frames T' for T feature frames."""
        return self.subsampling.output_lengths(feature_lengths) // STRIDE**self.num_strided_layers

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        tapped: dict[int, Encoded] = {}
        strided, others = [*self.blocks][: self.num_strided_layers], [*self.blocks][self.num_strided_layers :]
        for index, block in enumerate(strided):
            x, lengths, blocks, *_ = self._run([block], index, x, lengths, STRIDE, taps)
            tapped.update(blocks)
        encoded = self._run(others, len(strided), x, lengths, 1, taps)
        return encoded._replace(out=self.norm_output(encoded.out), blocks={**tapped, **encoded.blocks})

    def _run(
        self, blocks: Sequence[nn.Module], first: int, x: Tensor, lengths: Tensor, stride: int, taps: Taps
    ) -> Encoded:
        """Run blocks with one input frame rate; `first` is the index of the first. Only a single block has a stride."""
        padding, positions = padding_mask(lengths, x.shape[1]), self.first_block.positions(x)
        lengths = lengths // stride
        after = padding_mask(lengths, max(1, x.shape[1] // stride))
        x, tapped = run_blocks(blocks, x, after, taps, lambda block, x: block(x, positions, padding), first)
        return with_blocks(x, lengths, tapped)
