"""The gated linear unit before the convolution in all convolution modules."""

import torch.nn.functional as F
from torch import Tensor


def gated(x: Tensor, padding_mask: Tensor) -> Tensor:
    """Apply a GLU and set padded frames to 0: (B, T, 2D), (B, T) to (B, T, D).

    A kernel then reads zeros after the last frame of an utterance, whatever the batch.
    """
    return F.glu(x).masked_fill(padding_mask[:, :, None], 0.0)
