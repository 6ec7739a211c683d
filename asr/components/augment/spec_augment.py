"""SpecAugment: masks over time and frequency."""

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Self

import torch
from torch import Tensor

from asr.base.settings.rule import Fraction, whole


@dataclass
class SpecAugment:
    """Set random ranges of frames and of mel bins to 0, the mean of normalised features.

    *Source*: Park et al. 2019, arXiv:1904.08779; time masks that scale with the length: Park et al. 2019,
    arXiv:1912.05533.

    *Differs from the paper*: there is no time warping, which has the smallest effect (section 5).

    Args:
        num_freq_masks: number of masks over mel bins.
        freq_mask_bins: upper bound of the masks' width (F in the paper): the width is uniform in
            [0, min(freq_mask_bins, number of bins)).
        num_time_masks: number of masks over frames.
        time_mask_fraction: upper bound of the masks' length, as a fraction of the utterance's (p_S in
            arXiv:1912.05533).
    """

    stage = "features"

    _: KW_ONLY
    num_freq_masks: Annotated[int, whole(0, 1_000)]
    freq_mask_bins: Annotated[int, whole(0, 1_000)]
    num_time_masks: Annotated[int, whole(0, 1_000)]
    time_mask_fraction: Fraction

    def __call__(self, features: Tensor) -> Tensor:
        """Map (T, F) to (T, F), with masks drawn from torch's CPU generator."""
        masked = features.clone()
        for first_frame, end_frame, first_bin, end_bin in self.draw(*features.shape).tolist():
            masked[first_frame:end_frame, first_bin:end_bin] = 0.0
        return masked

    @property
    def masks(self) -> Self:
        """Return this object: its masks do not depend on the features' values, so they can be drawn in advance."""
        return self

    def draw(self, num_frames: int, dim: int) -> Tensor:
        """Draw masks from torch's CPU generator, (masks, 4) int64: first frame, end frame, first bin, end bin."""
        bins = [_draw_range(dim, self.freq_mask_bins) for _ in range(self.num_freq_masks)]
        max_frames = int(num_frames * self.time_mask_fraction)
        frames = [_draw_range(num_frames, max_frames) for _ in range(self.num_time_masks)]
        masks = [(0, num_frames, *ends) for ends in bins] + [(*ends, 0, dim) for ends in frames]
        return torch.tensor(masks, dtype=torch.int64).view(-1, 4)


def _draw_range(size: int, bound: int) -> tuple[int, int]:
    """Draw start and end of a range within [0, size): first its length, below `bound`, then its start."""
    bound = min(bound, size)
    if bound == 0:
        return 0, 0
    length = torch.rand(()) * bound
    start = torch.rand(()) * (size - length)
    return int(start), int(start) + int(length)
