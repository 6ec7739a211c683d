"""Depthwise convolutions: over frames, and over frames and frequencies."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.kernels.choice import wants_plain


def depthwise(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> Tensor:
    """Convolve each channel with its own kernel, centred, with zeros before the first frame and after the last.

    Args:
        x: (B, T, D).
        weight: (D, 1, kernel size); the kernel size is odd.
        bias: (D,).
        dilation: distance in frames between elements of the kernel.

    Returns:
        (B, T, D).
    """
    return (depthwise_plainly if wants_plain() else depthwise_as_image)(x, weight, bias, dilation)


def depthwise_plainly(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> Tensor:
    """Use torch's 1D convolution."""
    padding = dilation * (weight.shape[-1] // 2)
    out = F.conv1d(x.transpose(1, 2), weight, bias, padding=padding, dilation=dilation, groups=len(weight))
    return out.transpose(1, 2)


def depthwise_as_image(x: Tensor, weight: Tensor, bias: Tensor | None, dilation: int = 1) -> Tensor:
    """Convolve sequences as images of one row, because CPU libraries then read x as it is stored, channels last."""
    image = x.transpose(1, 2)[:, :, None]  # (B, D, 1, T)
    if x.is_cuda:
        # With channels first, torch 2.11 takes its own depthwise kernel in float32 and bfloat16; otherwise cuDNN's.
        image = image.contiguous()
    weight = weight[:, :, None]  # (D, 1, 1, kernel)
    padding = (0, dilation * (weight.shape[-1] // 2))
    return conv2d_per_channel(image, weight, bias, padding=padding, dilation=dilation)[:, :, 0].transpose(1, 2)


class DepthwiseConv2d(nn.Conv2d):
    """A 2D convolution with one kernel per channel."""

    def __init__(self, num_channels: int, kernel_size: int, stride: int, padding: int) -> None:
        super().__init__(num_channels, num_channels, kernel_size, stride, padding, groups=num_channels)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve x (B, C, H, W)."""
        return conv2d_per_channel(x, self.weight, self.bias, stride=self.stride, padding=self.padding)


def conv2d_per_channel(x: Tensor, weight: Tensor, bias: Tensor | None, **options: Any) -> Tensor:
    """Convolve each channel with its own kernel; on a CPU, half precision is computed in float32 and rounded.

    For many bfloat16 shapes, such as (1, 144, 1, 250) on two threads, oneDNN of torch 2.11 generates code forever.

    Args:
        x: (B, C, H, W).
        weight: (C, 1, kernel height, kernel width).
        bias: (C,).
        options: stride, padding and dilation of torch's conv2d.
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    if wants_plain() or x.device.type != "cpu" or dtype not in (torch.bfloat16, torch.float16):
        return F.conv2d(x, weight, bias, groups=len(weight), **options)
    with torch.autocast("cpu", enabled=False):
        bias = None if bias is None else bias.float()
        return F.conv2d(x.float(), weight.float(), bias, groups=len(weight), **options).to(dtype)
