"""The depthwise convolution over frames."""

import torch
import torch.nn.functional as F
from torch import Tensor

from asr.kernels.choice import wants_plain


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> Tensor:
    """Convolve each channel with its own kernel, centred; zeros before the first frame and behind the last.

    Args:
        x: (B, T, D).
        weight: (D, 1, kernel), of an odd number of frames.
        bias: (D,).
        dilation: frames from one that the kernel sees to the next.

    Returns:
        (B, T, D).
    """
    return (depthwise_plainly if wants_plain() else depthwise_as_image)(x, weight, bias, dilation)


def depthwise_in_chunks(x: Tensor, weight: Tensor, bias: Tensor | None, chunk: int | None) -> Tensor:
    """Convolve like `depthwise`, but behind the end of its own chunk a frame sees zeros.

    *Source*: Li et al. 2023, arXiv:2304.09325, section 3.2: dynamic chunk convolution.

    Args:
        x: (B, kernel // 2 + T, D): before the T frames those that the first of them sees.
        weight: (D, 1, kernel), of an odd number of frames.
        bias: (D,).
        chunk: frames of each; None: one chunk for all.

    Returns:
        (B, T, D).
    """
    if chunk is None:
        return depthwise(x, weight, bias)[:, weight.shape[-1] // 2 :]
    return (depthwise_in_chunks_plainly if wants_plain() else depthwise_chunk_by_chunk)(x, weight, bias, chunk)


def depthwise_in_chunks_plainly(x: Tensor, weight: Tensor, bias: Tensor | None, chunk: int) -> Tensor:
    """A kernel for each frame, without what is behind the chunk."""
    before = weight.shape[-1] // 2
    frame = torch.arange(x.shape[1] - before, device=x.device)[:, None]
    place = frame + torch.arange(weight.shape[-1], device=x.device)  # in x, of what a frame sees, (T, kernel)
    there = (place < before + (frame // chunk + 1) * chunk) & (place < x.shape[1])
    seen = x[:, place.clamp(max=x.shape[1] - 1)].masked_fill(~there[:, :, None], 0.0)  # (B, T, kernel, D)
    out = (seen * weight[:, 0].T).sum(dim=2)
    return out if bias is None else out + bias


def depthwise_chunk_by_chunk(x: Tensor, weight: Tensor, bias: Tensor | None, chunk: int) -> Tensor:
    """Each chunk with the frames before it as an utterance of its own."""
    before = weight.shape[-1] // 2
    frames = x.shape[1] - before
    windows = F.pad(x, (0, 0, 0, -frames % chunk)).unfold(1, before + chunk, chunk)  # (B, n, D, before + chunk)
    out = depthwise(windows.flatten(0, 1).transpose(1, 2), weight, bias)[:, before:]  # (B n, chunk, D)
    return out.unflatten(0, (len(x), -1)).flatten(1, 2)[:, :frames]


def depthwise_plainly(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> Tensor:
    """As torch has it."""
    padding = dilation * (weight.shape[-1] // 2)
    out = F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, dilation=dilation, groups=len(weight))
    return out.transpose(1, 2)


def depthwise_as_image(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> Tensor:
    """As images of one row: so a processor's library takes channels last, as they lie."""
    image = x.transpose(1, 2)[:, :, None]  # (B, D, 1, T)
    if x.is_cuda:
        image = image.contiguous()  # cuDNN is three times as fast with channels first
    weight = weight[:, :, None]  # (D, 1, 1, kernel)
    padding = (0, dilation * (weight.shape[-1] // 2))
    out = F.conv2d(image, weight, bias, padding=padding, dilation=dilation, groups=len(weight))
    return out[:, :, 0].transpose(1, 2)
