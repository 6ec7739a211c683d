"""The gated linear unit before the convolution in all convolution modules."""

import torch.nn.functional as F
from torch import Tensor


def gated(x: Tensor, padding_mask: Tensor) -> Tensor:
    """Apply a GLU to x (B, T, 2D), and set padded frames (padding_mask, (B, T)) of the result (B, T, D) to 0.

    The convolution therefore reads zeros after the last frame of an utterance, whatever the batch.
    """
    return F.glu(x).masked_fill(padding_mask[:, :, None], 0.0)
