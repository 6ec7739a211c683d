"""Features without normalisation."""

from torch import Tensor, nn


class NoneNormalize:
    """Leave the features unchanged, as NVIDIA NeMo's streaming models do (`normalize: NA`)."""

    framewise = True

    def __call__(self, features: Tensor) -> Tensor:
        """Return the features, (T, F)."""
        return features

    @property
    def batched(self) -> nn.Module:
        """The normalisation of a padded batch."""
        return Unchanged()

    def fit(self, features: object) -> None:
        """Do nothing: there are no statistics of the training set."""

    def files(self) -> dict[str, bytes]:
        """Return no files."""
        return {}

    def load(self, files: dict[str, bytes]) -> None:
        """Do nothing."""


class Unchanged(nn.Module):
    """`NoneNormalize` of a padded batch."""

    def forward(self, features: Tensor, padding: Tensor) -> Tensor:
        """Map (B, T, F), (B, T) to (B, T, F)."""
        return features
