"""Normalisation by the statistics of an utterance's loud frames."""

import math
from typing import Annotated

from torch import Tensor

from asr.base.settings.rule import Eps, number
from asr.components.features.batched.moments import masked_mean, masked_var
from asr.components.features.normalize.frame import Normalizer


class LoudFrameCMVN(Normalizer):
    """Shift and scale each bin to mean 0 and variance 1 over the loud frames.

    Like `per_utterance`, this removes the effects of loudness and channel, but pauses do not count: inserted or leading
    silence does not change the features of the speech. In frames that are not loud, each bin is raised to at least its
    minimum over the loud frames, so that digital silence and low noise have equal features.

    Args:
        dynamic_range: maximum difference in mean log-mel energy (natural logarithm) between the loudest frame and a
            frame that counts as loud.
        min_std: lower bound of the divisor, for constant bins.
    """

    def __init__(self, *, dynamic_range: Annotated[float, number(0, 100)], min_std: Eps) -> None:
        super().__init__()
        self.dynamic_range = dynamic_range
        self.min_std = min_std

    def normalized(self, features: Tensor, valid: Tensor | None) -> Tensor:
        """Normalise features (..., T, F)."""
        level = features.mean(dim=-1)  # (..., T)
        if valid is not None:
            level = level.masked_fill(~valid, -math.inf)
        loud = level >= level.amax(dim=-1, keepdim=True) - self.dynamic_range
        if valid is None:
            frames, counted = features[loud], None
            lowest = frames.amin(dim=0)
        else:
            frames, counted = features, loud & valid
            lowest = frames.masked_fill(~counted[..., None], math.inf).amin(dim=-2, keepdim=True)
        mean = masked_mean(frames, counted)
        std = masked_var(frames - mean, counted).sqrt()
        return (features.maximum(lowest) - mean) / std.clamp(min=self.min_std)
