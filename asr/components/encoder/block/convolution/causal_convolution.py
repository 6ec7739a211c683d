"""The Conformer's convolution module, with a causal convolution."""

import torch.nn.functional as F
from torch import Tensor

from asr.base.kernels.depthwise import depthwise
from asr.components.encoder.block.convolution.gated import GatedConvolution


class CausalConvolution(GatedConvolution):
    """The module of `DepthwiseConvolution`, with a kernel that covers a frame and the frames before it.

    *Source*: Noroozi et al. 2024, arXiv:2312.17279, section 3, where the norm is LayerNorm.
    """

    @property
    def num_kept(self) -> int:
        """Number of frames before an output frame that the kernel covers."""
        return self.depthwise.kernel_size[0] - 1

    def convolve(self, x: Tensor, num_before: int) -> Tensor:
        """Map x (B, num_before + T, D) to (B, T, D)."""
        x = x if num_before else F.pad(x, (0, 0, self.num_kept, 0))
        # The kernel's output at a frame is that of a centred kernel num_kept / 2 frames earlier.
        out = depthwise(x, self.depthwise.weight, self.depthwise.bias)
        return out.narrow(1, self.num_kept // 2, x.shape[1] - self.num_kept)
