"""Parts that the blocks, the stacks and the front-end of a Zipformer share."""

from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.choice import wants_plain
from asr.base.kernels.swoosh import swoosh

INITIAL_BYPASS = 0.5  # share of a branch in the sum with its input, in a new network
Layer = TypeVar("Layer", bound=nn.Module)


class SwooshL(nn.Module):
    """The function log(1 + exp(x - 4)) - 0.08 x - 0.035, for layers with many inputs near 0.

    *Source*: Yao et al. 2023, arXiv:2310.11230.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise to a tensor of any shape."""
        return swoosh(x, 4.0, 0.035)


class SwooshR(nn.Module):
    """The function log(1 + exp(x - 1)) - 0.08 x - 0.313261687, which is 0 at 0.

    *Source*: Yao et al. 2023, arXiv:2310.11230.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise to a tensor of any shape."""
        return swoosh(x, 1.0, 0.313261687)


class BiasNorm(nn.Module):
    """Divide each frame by the root mean square of its distance from a trained bias, and multiply by a trained scale.

    Each frame is normalised by itself, in float32 at least, so that padding has no effect.

    *Source*: Yao et al. 2023, arXiv:2310.11230.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(1e-4 * torch.randn(dim))
        self.log_scale = nn.Parameter(torch.ones(1))  # not a scalar, which FSDP cannot shard

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (..., D) to (..., D)."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        mean_square = (x - self.bias).square().mean(dim=-1, keepdim=True)
        return x * (mean_square.clamp(min=torch.finfo(x.dtype).tiny).rsqrt() * self.log_scale.exp())


class Bypass(nn.Module):
    """The sum of a module's input and output, in which each channel has a trained share of the output.

    *Source*: Yao et al. 2023, arXiv:2310.11230.

    *Differs from the paper*: the shares are not limited to a range that depends on the training step.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.full((dim,), INITIAL_BYPASS))

    def forward(self, x: Tensor, out: Tensor) -> Tensor:
        """Join the input x and the output of a module, (..., D) each, to (..., D)."""
        return x + (out - x) * self.share


class Pooling(nn.Module):
    """A weighted mean of each `stride` frames, with one trained weight for each place in the group.

    An incomplete group at the end of an utterance is completed with copies of the utterance's last frame.

    *Source*: Yao et al. 2023, arXiv:2310.11230.
    """

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.weight = nn.Parameter(torch.zeros(stride))  # before the softmax

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, T, D) with lengths (B,) to (B, T', D) with lengths (B,); T' = ceil(T / stride)."""
        last_frame = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
        last = x.gather(1, last_frame)  # (B, 1, D)
        x = F.pad(x, (0, 0, 0, -x.shape[1] % self.stride))
        after = torch.arange(x.shape[1], device=x.device) >= lengths[:, None]
        groups = torch.where(after[:, :, None], last, x).unflatten(1, (-1, self.stride))  # (B, T', stride, D)
        pooled = (groups * self.weight.softmax(dim=0)[:, None]).sum(dim=2)
        return pooled, (lengths + self.stride - 1) // self.stride


class ChunkView(NamedTuple):
    """What the Q frames of the input of a streaming block see.

    Args:
        positions: encodings of the distances to M earlier and Q new frames, (2 Q + M - 1, position_dim).
        hidden: True where a frame must not attend to another one, (B, Q or 1, M + Q).
        padding: padding mask, (B, Q).
        chunk: number of frames of a chunk.
        ends: number of frames from the first frame of a chunk to its end, (B,), as in `ChunkConvolution.in_chunks`.
    """

    positions: Tensor
    hidden: Tensor
    padding: Tensor
    chunk: int
    ends: Tensor


def repeated(x: Tensor, stride: int, num_frames: int) -> Tensor:
    """Repeat each frame `stride` times, and cut to `num_frames`: (B, T', D) to (B, T, D)."""
    if wants_plain():  # the size of the repeated frames before the cut would depend on T
        return x[:, torch.arange(num_frames, device=x.device) // stride]
    return x.repeat_interleave(stride, dim=1)[:, :num_frames]


def scaled(layer: Layer, factor: float) -> Layer:
    """Multiply the initial weights of a layer, so that a new network's branches have outputs of the wanted size."""
    with torch.no_grad():
        for weight in layer.parameters():
            weight.mul_(factor)
    return layer
