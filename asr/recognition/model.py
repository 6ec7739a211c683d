"""The model: text and features at its ends, encoder and head between them. What is trained, planned for and kept."""

import torch
from torch import Tensor, nn

from asr.data.dataset import Reference
from asr.interfaces import Encoded, Encoder, Features, Head, Tokenizer
from asr.text.normalize import Normalizer, scored_by


class Model(nn.Module):
    """Encoder and head, with what stands before and behind them.

    Args:
        normalize: text normaliser, for references and hypotheses.
        tokenizer: fitted.
        features: fitted; on the CPU, also in data workers.
        encoder: features to encoder_out.
        head: what is trained on encoder_out.
    """

    def __init__(
        self, normalize: Normalizer, tokenizer: Tokenizer, features: Features, encoder: Encoder, head: Head
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.tokenizer = tokenizer
        self.features = features
        self.encoder = encoder
        self.head = head

    def forward(self, features: Tensor, feature_lengths: Tensor) -> Encoded:
        """(B, T, F), (B,) to what the encoder gives, tapped as the head asks."""
        return self.encoder(features, feature_lengths, self.head.taps)

    @property
    def reference(self) -> Reference:
        """How a text becomes tokens that this model can be trained on."""
        head = self.head
        return Reference(self.tokenizer.encode, head.min_frames, self.encoder.output_lengths, head.cells, head.views)

    @property
    def scored_by(self) -> Normalizer:
        """What references and hypotheses are normalised by when errors are counted."""
        return scored_by(self.normalize)

    @property
    def is_program(self) -> bool:
        """Whether another library runs the net, on the processor: then torch has no weights of it."""
        return next(self.parameters(), None) is None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device("cpu") if self.is_program else next(self.parameters()).device

    @property
    def frame_samples(self) -> int:
        """Samples from one encoder frame to the next."""
        return self.encoder.stride * self.features.hop

    @property
    def frame_seconds(self) -> float:
        """Seconds from one encoder frame to the next."""
        return self.frame_samples / self.features.sample_rate
