"""Arithmetic on lengths: the valid frames of a batch, and the number of frames that a convolution outputs."""

from typing import TypeVar

import torch
from torch import Tensor

Lengths = TypeVar("Lengths", int, Tensor)


def padding_mask(lengths: Tensor, max_length: int) -> Tensor:
    """Compute the padding mask of a batch.

    Args:
        lengths: number of valid frames of each utterance, (B,).
        max_length: T, number of frames of the padded batch.

    Returns:
        (B, T) bool, True = padding.
    """
    return torch.arange(max_length, device=lengths.device) >= lengths[:, None]


def strided_lengths(lengths: Lengths, *, kernel_size: int, stride: int, padding: int) -> Lengths:
    """Compute the output length of a convolution with padding and without dilation.

    `lengths` is an int or a tensor. The output length is 0 for an empty input, and for a padded input that is shorter
    than the kernel.
    """
    outputs = (lengths + 2 * padding - kernel_size) // stride + 1
    return outputs * (lengths > 0) * (outputs > 0)
