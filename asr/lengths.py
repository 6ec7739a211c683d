"""All arithmetic on lengths: how many of a batch's frames are real, and how many a convolution leaves."""

from typing import TypeVar

import torch
from torch import Tensor

Lengths = TypeVar("Lengths", int, Tensor)


def padding_mask(lengths: Tensor, max_length: int) -> Tensor:
    """Tell which frames of a padded batch are padding.

    Args:
        lengths: valid frames of each utterance, (B,).
        max_length: frames T of the padded batch.

    Returns:
        (B, T) bool, True = padding.
    """
    return torch.arange(max_length, device=lengths.device) >= lengths[:, None]


def strided_lengths(lengths: Lengths, *, kernel_size: int, stride: int, padding: int) -> Lengths:
    """Count the outputs of a convolution (dilation 1) whose first and last windows may reach into the padding.

    Works on one length or on a tensor of them. Nothing comes out of nothing, nor of less than the kernel.
    """
    outputs = (lengths + 2 * padding - kernel_size) // stride + 1
    return outputs * (lengths > 0) * (outputs > 0)
