"""The model: features, encoder, head and tokenizer. Training, export and storage work on this object."""

import torch
from torch import Tensor, nn

from asr.data.batch import Batch
from asr.data.dataset import Reference
from asr.errors import InputError
from asr.interfaces import Encoded, Encoder, Features, Head, Tokenizer
from asr.text.normalize import Normalizer, scored_by


class Model(nn.Module):
    """Features, encoder and head, with tokenizer and normaliser for the texts.

    Args:
        normalize: text normaliser, for references and hypotheses.
        tokenizer: fitted tokenizer.
        features: fitted features.
        encoder: maps features to encoder_out.
        head: output layers and loss on encoder_out.
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
        """Encode features (B, T, F) with lengths (B,); also return the outputs of the blocks that the head taps.

        Raises:
            InputError: the encoder does not return the outputs of the tapped blocks.
        """
        taps = self.head.taps
        encoded = self.encoder(features, feature_lengths, taps)
        if encoded.blocks.keys() != taps.keys():
            name, tapped = type(self.encoder).__name__, ", ".join(map(str, taps))
            must = f"{name}.forward must apply the taps and return the outputs of the tapped blocks in Encoded.blocks"
            given = ", ".join(map(str, encoded.blocks)) or "none"
            raise InputError(
                f"{must}; the head taps {tapped}, got {given}. "
                "asr.encoder.stack.run_blocks applies taps and returns these outputs."
            )
        return encoded

    def encode(self, batch: Batch) -> Encoded:
        """Encode a batch, whose tensors are on the model's device; the numbers of frames stay known on the CPU."""
        encoded = self(batch.features, batch.feature_lengths)
        num_frames = tuple(map(self.encoder.output_lengths, batch.num_frames))
        encoded_batch: Encoded = encoded._replace(conditions=batch.conditions, num_frames=num_frames)
        return encoded_batch

    @property
    def reference(self) -> Reference:
        """Functions that turn texts into training targets for this model."""
        head = self.head
        return Reference(self.tokenizer.encode, head.min_frames, self.encoder.output_lengths, head.cells, head.views)

    @property
    def scored_by(self) -> Normalizer:
        """Normaliser that is applied to references and hypotheses before word errors are counted."""
        return scored_by(self.normalize)

    @property
    def is_program(self) -> bool:
        """Whether the network is an exported program, which has no torch weights and runs on the CPU only."""
        return next(self.parameters(), None) is None

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return torch.device("cpu") if self.is_program else next(self.parameters()).device

    @property
    def frame_samples(self) -> int:
        """Samples from one encoder frame to the next."""
        return self.encoder.stride * self.features.hop

    @property
    def frame_seconds(self) -> float:
        """Seconds from one encoder frame to the next."""
        return self.frame_samples / self.features.sample_rate
