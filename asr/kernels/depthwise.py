"""The depthwise convolution over frames."""

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
