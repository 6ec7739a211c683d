"""Sinusoidal encodings of positions and distances."""

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
