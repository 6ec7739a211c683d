"""Sinusoidal encodings of positions and distances."""

import math

import torch
from torch import Tensor


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Return sines (even channels) and cosines (odd) of `positions`, (P,) to (P, dim).

    *Source*: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, device=positions.device) / dim)  # (dim / 2,)
    angles = positions[:, None].to(frequencies.dtype) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def relative_positions(num_frames: int, dim: int, device: torch.device) -> Tensor:
    """Return encodings of the distances T-1 .. -(T-1) from a query back to a key, (2T - 1, dim)."""
    return sinusoids(torch.arange(num_frames - 1, -num_frames, -1, device=device), dim)


def compact_positions(num_frames: int, dim: int, device: torch.device) -> Tensor:
    """Return encodings of the distances T-1 .. -(T-1) from a query back to a key, (2T - 1, dim).

    A distance is compressed to an angle: in proportion for distances near 0, by the logarithm for others. The channels
    are cosines (even) and sines (odd) of the multiples of the angle; the last channel is 1. They need few dimensions,
    because large distances that differ little have nearly equal encodings.

    *Source*: icefall's Zipformer.
    """
    offset = torch.arange(1 - num_frames, num_frames, device=device).to(torch.float32)  # of the key from the query
    root = dim**0.5
    compressed = root * offset.sign() * ((offset.abs() + root).log() - math.log(root))
    angles = (compressed / (dim / (2.0 * math.pi))).atan()[:, None] * torch.arange(1, dim // 2 + 1, device=device)
    encodings = torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)
    return torch.cat([encodings[:, :-1], torch.ones_like(encodings[:, :1])], dim=1)
