"""The gate before the convolution of each convolution module."""

import torch.nn.functional as F
from torch import Tensor


def gated(x: Tensor, padding_mask: Tensor) -> Tensor:
    """Apply a GLU and set padded frames to 0, (B, T, 2D), (B, T) to (B, T, D).

    The zeros are what a kernel sees after the last frame of an utterance, in any batch.
    """
    return F.glu(x).masked_fill(padding_mask[:, :, None], 0.0)
