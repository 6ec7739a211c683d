"""The Gaussian error linear unit."""

import torch.nn.functional as F
from torch import Tensor, nn


class GELU(nn.Module):
    """x times the probability that a normal variable is less than x; exact, not the paper's approximation by tanh.

    *Source*: Hendrycks and Gimpel 2016, arXiv:1606.08415.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same."""
        return F.gelu(x)
