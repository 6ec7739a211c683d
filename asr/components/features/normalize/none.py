"""Features without normalisation."""

from torch import Tensor

from asr.components.features.normalize.frame import Normalizer


class NoneNormalize(Normalizer):
    """Leave the features unchanged, as NVIDIA NeMo's streaming models do (`normalize: NA`)."""

    framewise = True

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Return the features, (..., T, F)."""
        return features
