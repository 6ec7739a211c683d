"""The Gaussian error linear unit."""

import torch.nn.functional as F
from torch import Tensor, nn


class GELU(nn.Module):
    """x times the probability that a standard normal variable is less than x.

    *Source*: Hendrycks and Gimpel 2016, arXiv:1606.08415. The probability is exact; the paper's approximation by tanh
    is not used.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise to a tensor of any shape."""
        return F.gelu(x)
