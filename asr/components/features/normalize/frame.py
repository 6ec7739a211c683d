"""The frame of all normalisations: an utterance and a padded batch, without statistics of the training set."""

import copy
from collections.abc import Iterable
from typing import ClassVar, Self

from torch import Tensor, nn


class Normalizer(nn.Module):
    """Normalise an utterance (T, F), or a padded batch (B, T, F) with padding (B, T), by the same code, `normalized`.

    A normalisation with statistics of the training set overrides `fit`, `files` and `load`, and has them as buffers.
    """

    framewise: ClassVar[bool] = False

    def forward(self, features: Tensor, padding: Tensor | None = None) -> Tensor:
        """Map (T, F) to (T, F), or (B, T, F) to (B, T, F)."""
        if padding is None:
            return self.normalized(features, None) if len(features) else features
        return self.normalized(features, ~padding)

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Normalise features (..., T, F), T > 0; `valid` is (..., T), True at valid frames, or None: all are valid."""
        raise NotImplementedError

    @property
    def batched(self) -> Self:
        """The normalisation of a padded batch: a copy, which can be moved to another device."""
        return copy.deepcopy(self)

    def fit(self, features: Iterable[Tensor]) -> None:
        """Do nothing: there are no statistics of the training set."""

    def files(self) -> dict[str, bytes]:
        """Return no files."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Do nothing."""
