"""A Transformer whose positions come from a convolution, as in wav2vec 2.0."""

from collections.abc import Callable
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.settings.rule import Dim, Layers, whole
from asr.components.encoder.stack import run_blocks, with_blocks
from asr.components.encoder.transformer import Transformer
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, Subsampling, Taps
from asr.lengths import padding_mask


class Wav2Vec2(Transformer):
    """A front-end, a convolution over frames that is added to its output, and a stack of Transformer blocks.

    *Source*: Baevski et al. 2020 (wav2vec 2.0), arXiv:2006.11477, section 2; the norms come before the sub-layers as
    in its large models (transformers' `do_stable_layer_norm`).

    Args:
        dim: D, dimension of each encoder frame.
        num_layers: number of blocks.
        position_kernel_size: frames that the convolution reads.
        position_groups: groups of its channels; must divide D.
        subsampling: makes the front-end, given F and D.
        block: makes a block, given D; the dropout of blocks is also that of their input.

    Raises:
        InputError: the groups do not divide D.
    """

    def __init__(
        self,
        input_dim: int,
        *,
        dim: Dim,
        num_layers: Layers,
        position_kernel_size: Annotated[int, whole(1, 1_000)],
        position_groups: Annotated[int, whole(1, 65_536)],
        subsampling: Callable[[int, int], Subsampling],
        block: Callable[[int], Any],
    ) -> None:
        if dim % position_groups:
            must = "encoder.dim must be a multiple of encoder.position_groups"
            raise InputError(f"{must}; got dim={dim}, position_groups={position_groups}.")
        super().__init__(input_dim, dim=dim, num_layers=num_layers, subsampling=subsampling, block=block)
        self.positions = PositionConv(dim, position_kernel_size, position_groups)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        """Encode features (B, T, F) with lengths (B,) to (B, T', D), (B,)."""
        x, lengths = self.subsampling(features, feature_lengths)
        padding = padding_mask(lengths, x.shape[1])
        x = x.masked_fill(padding[:, :, None], 0.0)
        x = self.dropout(x + self.positions(x))
        x, blocks = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x, padding))
        return with_blocks(self.norm_output(x), lengths, blocks)


class PositionConv(nn.Module):
    """A grouped convolution over frames, whose kernel has a norm of its own at each of its frames, and GELU.

    *Source*: Salimans and Kingma 2016 (weight normalisation), arXiv:1602.07868, with one norm per frame of the kernel
    as in wav2vec 2.0.
    """

    def __init__(self, dim: int, kernel_size: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.before, self.after = kernel_size // 2, (kernel_size - 1) // 2  # frames
        initial = nn.Conv1d(dim, dim, kernel_size, groups=groups)
        self.direction = nn.Parameter(initial.weight.detach())  # (D, D / groups, K)
        self.scale = nn.Parameter(_norms(initial.weight.detach()))  # (1, 1, K)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, T', D), 0 at padded frames, to (B, T', D)."""
        kernel = self.direction * (self.scale / _norms(self.direction))
        x = F.pad(x.transpose(1, 2), (self.before, self.after))
        return F.gelu(F.conv1d(x, kernel, self.bias, groups=self.groups)).transpose(1, 2)


def _norms(kernel: Tensor) -> Tensor:
    """Return the norm of each frame of a kernel (D, D / groups, K), (1, 1, K)."""
    return kernel.square().sum(dim=(0, 1), keepdim=True).sqrt()
