"""Two 3x3 convolutions of stride 2, each with ReLU: a plain form, and a form with blockwise matrix products."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.kernels.choice import wants_plain
from asr.base.kernels.depthwise import conv2d_per_channel
from asr.lengths import Lengths, padding_mask, strided_lengths

KERNEL_SIZE, STRIDE, PADDING = 3, 2, 1
# Number of values of the first convolution's output in memory at a time. CPU_BLOCK applies to each thread and fits a
# core's cache; BLOCK is large enough to keep other devices busy.
CPU_BLOCK, BLOCK = 2**19, 2**27


def convolve_twice(
    features: Tensor, lengths: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
) -> Tensor:
    """Apply convolution and ReLU twice; the input of each convolution is zero after an utterance's end.

    Args:
        features: (B, T, F).
        lengths: number of valid frames, (B,).
        weight1: (C, 1, 3, 3).
        bias1: (C,).
        weight2: (C, C, 3, 3).
        bias2: (C,).

    Returns:
        (B, T', F/4, C), F/4 rounded up; finite after an utterance's end, whatever the padding contains.
    """
    form = convolve_twice_plainly if wants_plain() else convolve_twice_by_blocks
    return form(features, lengths, weight1, bias1, weight2, bias2)


def convolve_twice_plainly(
    features: Tensor, lengths: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
) -> Tensor:
    """Use torch's 2D convolution."""
    x = features[:, None]  # (B, 1, T, F)
    for weight, bias in ((weight1, bias1), (weight2, bias2)):
        x = x.masked_fill(padding_mask(lengths, x.shape[2])[:, None, :, None], 0.0)
        x = F.relu(F.conv2d(x, weight, bias, STRIDE, PADDING))
        lengths = halved(lengths)
    return x.permute(0, 2, 3, 1)


def convolve_twice_by_blocks(
    features: Tensor, lengths: Tensor, weight1: Tensor, bias1: Tensor, weight2: Tensor, bias2: Tensor
) -> Tensor:
    """Multiply `_windows` by matrices of weights, a few frames at a time (`_ConvolveTwice`)."""
    first = torch.cat([weight1.flatten(1), bias1[:, None]], dim=1).T  # (10, C)
    second = weight2.permute(2, 3, 1, 0).flatten(1, 2)  # (3, 3C, C)
    x: Tensor = _ConvolveTwice.apply(features, lengths, first, second, bias2)  # (N, F/4, C)
    return x.unflatten(0, (len(features), -1))[:, :-1]


def halved(lengths: Lengths) -> Lengths:
    """Return the number of outputs of one convolution."""
    return strided_lengths(lengths, kernel_size=KERNEL_SIZE, stride=STRIDE, padding=PADDING)


def convolve_on(x: Tensor, before: Tensor, weight: Tensor, bias: Tensor | None, groups: int = 1) -> Tensor:
    """Apply one convolution to the next frames of a stream.

    Args:
        x: (B, C, T, F), T even.
        before: the frame before x, zero at the start, (B, C, 1, F).
        weight: (C', C / groups, 3, 3).
        bias: (C',).
        groups: number of groups of channels: 1 or C.

    Returns:
        (B, C', T / 2, F / 2): the outputs that depend on no later frame.
    """
    convolve = F.conv2d if groups == 1 else conv2d_per_channel
    return convolve(torch.cat([before, x], dim=2), weight, bias, stride=STRIDE, padding=(0, PADDING))


def _windows(features: Tensor, lengths: Tensor) -> Tensor:
    """Arrange the input of the first convolution: the 3x3 features of each output, and a 1 for its bias.

    The utterances are concatenated, with at least one encoder frame of silence in between: N = B (T' + 1) frames.
    The second convolution computes frame n from the first convolution's frames 2n - 1, 2n and 2n + 1, and frequency f
    from its frequencies 2f - 1, 2f and 2f + 1.

    Returns:
        (2, N + 1, F/4, 3, 10). Row [i, n, f, j] is for the first convolution's output at frame 2n - 1 + i and frequency
        2f - 1 + j: the 3x3 features, then the 1. In padding the row is 0.
    """
    frames, dim = features.shape[1:]
    # Size of the first convolution's output for an utterance and the silence after it.
    frames1, dim1 = 2 * (halved(halved(frames)) + 1), halved(dim)
    dim2 = halved(dim1)
    x = features.masked_fill(padding_mask(lengths, frames)[:, :, None], 0.0)
    # The outputs of the first convolution begin at frame -1 and frequency -1. So the features that they read begin at
    # frame -3 and frequency -3.
    x = F.pad(x, (3, 4 * dim2 - dim, 0, 2 * frames1 - frames)).flatten(0, 1)
    x = F.pad(x, (0, 0, 3, 2))
    x = x.unfold(0, 3, 2).unfold(1, 3, 2).unfold(1, 3, 2)  # (2N + 2, F/4, 3, 3, 3): time, frequency, position
    x = F.pad(x.permute(0, 1, 4, 2, 3).flatten(3), (0, 1), value=1.0)  # (2N + 2, F/4, 3, 10)
    is_valid = torch.arange(frames1, device=x.device) < halved(lengths)[:, None]  # (B, frames1)
    is_valid = F.pad(is_valid.flatten(), (1, 1))
    frequency = torch.arange(2 * dim2 + 1, device=x.device).unfold(0, 3, 2) - 1  # (F/4, 3)
    outside = ~(is_valid[:, None, None] & (frequency >= 0) & (frequency < dim1))
    return x.masked_fill(outside[..., None], 0.0).unflatten(0, (-1, 2)).transpose(0, 1).contiguous()


class _ConvolveTwice(torch.autograd.Function):
    """Convolution, ReLU, convolution, ReLU, without storing the whole intermediate result.

    The intermediate result is C times as large as the features; writing and reading it would take longer than the
    matrix products. So it is computed block by block; the backward pass computes it again, which adds a tenth to the
    work.
    """

    @staticmethod
    def forward(ctx: Any, features: Tensor, lengths: Tensor, weight1: Tensor, weight2: Tensor, bias2: Tensor) -> Tensor:
        """Map (B, T, F), (B,), (10, C), (3, 3C, C), (C,) to (N, F/4, C), in autocast's dtype if it is enabled."""
        device = features.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else features.dtype
        windows = _windows(features, lengths).to(dtype)
        weight1, weight2, bias2 = (weight.to(dtype) for weight in (weight1, weight2, bias2))
        frames, height = windows.shape[1] - 1, windows.shape[2]
        out = windows.new_empty(frames, height, len(bias2))
        for first, last in _blocks(out):
            even, odd = (_convolve_once(phase[first : last + 1], weight1) for phase in windows)
            block = out[first:last].flatten(0, 1)
            torch.addmm(bias2, odd[:-height], weight2[1], out=block)
            block.addmm_(even[:-height], weight2[0]).addmm_(even[height:], weight2[2]).relu_()
        ctx.save_for_backward(features, lengths, weight1, weight2, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs; gradients of weights are summed at least in float32."""
        features, lengths, weight1, weight2, out = ctx.saved_tensors
        with torch.enable_grad():
            features = features.detach().requires_grad_(ctx.needs_input_grad[0])
            windows = _windows(features, lengths).to(out.dtype)
        height, wide = windows.shape[2], torch.promote_types(windows.dtype, torch.float32)
        grad1, grad2, grad_bias2 = (
            torch.zeros(shape, dtype=wide, device=grad.device)
            for shape in (weight1.shape, weight2.shape, out.shape[2:])
        )
        grad_windows = torch.zeros_like(windows) if features.requires_grad else None
        for first, last in _blocks(out):
            seen = windows[:, first : last + 1]
            even, odd = (_convolve_once(phase, weight1) for phase in seen)
            block = _relu_backward(grad[first:last], out[first:last]).flatten(0, 1)
            grad_bias2 += block.sum(0, dtype=wide)
            for tap, rows in enumerate((even[:-height], odd[:-height], even[height:])):
                grad2[tap] += rows.T @ block
            grad_even, grad_odd = torch.zeros_like(even), torch.zeros_like(odd)
            torch.mm(block, weight2[0].T, out=grad_even[:-height])
            torch.mm(block, weight2[1].T, out=grad_odd[:-height])
            grad_even[height:].addmm_(block, weight2[2].T)
            for phase, values, grads in ((0, even, grad_even), (1, odd, grad_odd)):
                inner = _relu_backward(grads, values).unflatten(1, (KERNEL_SIZE, -1)).flatten(0, 1)
                grad1 += seen[phase].flatten(0, 2).T @ inner
                if grad_windows is not None:
                    grad_windows[phase, first : last + 1] += (inner @ weight1.T).view_as(seen[phase])
        if grad_windows is None:
            return None, None, grad1, grad2, grad_bias2
        return *torch.autograd.grad(windows, features, grad_windows), None, grad1, grad2, grad_bias2


def _blocks(out: Tensor) -> list[tuple[int, int]]:
    """Return the first frame of each block of `out`, (N, F/4, C), and the frame after its last frame."""
    max_values = CPU_BLOCK * torch.get_num_threads() if out.device.type == "cpu" else BLOCK
    size = max(1, max_values // (2 * KERNEL_SIZE * out[0].numel()))
    return [(first, min(first + size, len(out))) for first in range(0, len(out), size)]


def _convolve_once(windows: Tensor, weight1: Tensor) -> Tensor:
    """Map (n, F/4, 3, 10), (10, C) to (n * F/4, 3C)."""
    return torch.mm(windows.flatten(0, 2), weight1).relu_().unflatten(0, (-1, KERNEL_SIZE)).flatten(1)


def _relu_backward(grad: Tensor, out: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(grad, out, 0)
