"""The depthwise convolution over frames."""

import torch.nn.functional as F
from torch import Tensor

from asr.kernels.choice import wants_plain


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
        image = image.contiguous()  # cuDNN is three times as fast with channels first
    weight = weight[:, :, None]  # (D, 1, 1, kernel)
    padding = (0, dilation * (weight.shape[-1] // 2))
    out = F.conv2d(image, weight, bias, padding=padding, dilation=dilation, groups=len(weight))
    return out[:, :, 0].transpose(1, 2)
