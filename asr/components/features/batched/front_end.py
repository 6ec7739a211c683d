"""Features of a padded batch of waveforms, for exported models and for computation on the device.

Features compute one utterance without padding. Their `batched` computes a padded batch with masks, using only
operations that every runtime has: the Fourier transform is a matrix product. The two results agree within float32
precision.
"""

from torch import Tensor, nn

from asr.errors import InputError
from asr.interfaces import Features
from asr.lengths import padding_mask


class FrontEnd(nn.Module):
    """Map waveforms (B, S) and sample_counts (B,) to features (B, T, F) and feature_lengths (B,).

    Samples after an utterance's end, including NaN, have no effect.

    Args:
        features: computes the features of a single utterance.

    Raises:
        InputError: the features have no batched form.
    """

    def __init__(self, features: Features) -> None:
        super().__init__()
        energies = getattr(features, "batched", None)  # None also for features of a package that has no such property
        if energies is None:
            must = "features that are exported, or computed on a device, must have a batched form"
            cure = "Use features=fbank or slaney_fbank, or add the property `batched` to the class"
            raise InputError(f"{must}; got {type(features).__name__}, which has none. {cure}.")
        self.energies = energies
        self.normalize = features.normalize.batched
        self.num_frames = features.num_frames

    def forward(self, waveforms: Tensor, sample_counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and lengths; the features have at least one frame, which may be padding."""
        padding = padding_mask(sample_counts, waveforms.shape[1])
        energies = self.energies(waveforms.masked_fill(padding, 0.0), sample_counts)  # (B, T, F)
        lengths = self.num_frames(sample_counts)
        return self.normalize(energies, padding_mask(lengths, energies.shape[1])), lengths
