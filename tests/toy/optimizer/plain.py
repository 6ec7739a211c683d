"""Gradient descent with momentum."""

from typing import Annotated

import torch

from asr.base.settings.rule import above


class Plain:
    """torch.optim.SGD.

    Args:
        lr: learning rate.
    """

    def __init__(self, *, lr: Annotated[float, above(0)]):
        self.lr = lr

    def __call__(self, named_parameters, depths):
        return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=self.lr, momentum=0.9)
