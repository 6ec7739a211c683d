"""SpecAugment: masks over time and frequency."""

from torch import Tensor
from torchaudio.transforms import FrequencyMasking, TimeMasking


class SpecAugment:
    """Set random stretches of frames and of mel bins to 0, the mean of normalised features.

    *Source*: Park et al. 2019, arXiv:1904.08779; time masks that scale with the length: Park et al. 2019,
    arXiv:1912.05533.

    *Differs from the paper*: no time warping, which its section 5 finds to matter least.

    Args:
        num_freq_masks: masks over mel bins.
        freq_mask_bins: their width is drawn from 0 up to, not including, this many bins (the paper's F).
        num_time_masks: masks over frames.
        time_mask_fraction: the same for their length, as a fraction of the utterance (p_S in arXiv:1912.05533).
    """

    stage = "features"

    def __init__(
        self, *, num_freq_masks: int, freq_mask_bins: int, num_time_masks: int, time_mask_fraction: float
    ) -> None:
        self.num_freq_masks = num_freq_masks
        self.num_time_masks = num_time_masks
        self.time_mask_fraction = time_mask_fraction
        # Not torchaudio's own SpecAugment: its `p`, meant for time, also caps the frequency masks (at 4 of 80 bins).
        self._mask_freq = FrequencyMasking(freq_mask_bins)

    def __call__(self, features: Tensor) -> Tensor:
        """(T, F) to (T, F); draws from torch's CPU generator."""
        if len(features) == 0:
            return features
        spectrogram = features.T
        for _ in range(self.num_freq_masks):
            spectrogram = self._mask_freq(spectrogram)
        mask_time = TimeMasking(int(features.shape[0] * self.time_mask_fraction))
        for _ in range(self.num_time_masks):
            spectrogram = mask_time(spectrogram)
        return spectrogram.T
