"""The model: features, encoder, prompt, head and tokenizer. Training, export and storage work on this object."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from asr.base.text.hidden_pieces import END_OF_UTTERANCE, language_tags
from asr.base.text.normalize import Normalizer, scored_by
from asr.core.data.batch import Batch
from asr.core.data.dataset import Reference
from asr.core.data.labels import LANGUAGE, NO_LABELS, Labels
from asr.core.recognition.depths import depths_in
from asr.errors import InputError
from asr.interfaces import Encoded, Encoder, Features, Head, Prompt, Tokenizer
from asr.lengths import Lengths

NO_CONDITIONS: Mapping[str, Tensor] = {}  # a dict, because torch.export does not know a mapping proxy


class Model(nn.Module):
    """Features, encoder and head, with tokenizer and normaliser for the texts.

    Args:
        normalize: text normaliser, for references and hypotheses.
        tokenizer: fitted tokenizer.
        features: fitted features.
        encoder: maps features to encoder_out.
        head: output layers and loss on encoder_out.
        prompt: changes encoder_out by a label of the utterance; None: encoder_out is not changed.
        labels: fitted values of the prompt's label.
    """

    def __init__(
        self,
        normalize: Normalizer,
        tokenizer: Tokenizer,
        features: Features,
        encoder: Encoder,
        head: Head,
        prompt: Prompt | None = None,
        labels: Labels = NO_LABELS,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.tokenizer = tokenizer
        self.features = features
        self.encoder = encoder
        self.prompt = prompt
        self.head = head
        self.labels = labels

    def forward(
        self, features: Tensor, feature_lengths: Tensor, conditions: Mapping[str, Tensor] = NO_CONDITIONS
    ) -> Encoded:
        """Encode features (B, T, F) with lengths (B,); also return the outputs of the blocks that the head taps.

        `conditions` has the ids, (B,), of the label that the prompt reads.

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
                "asr.components.encoder.stack.run_blocks applies taps and returns these outputs."
            )
        return self.prompted(encoded._replace(conditions=conditions))

    def prompted(self, encoded: Encoded) -> Encoded:
        """Apply the prompt, if the model has one, to the encoder's output."""
        return encoded if self.prompt is None else self.prompt(encoded)

    def encode(self, batch: Batch) -> Encoded:
        """Encode a batch, whose tensors are on the model's device; the numbers of frames stay known on the CPU."""
        lengths = batch.feature_lengths
        # All views of an utterance have its labels.
        conditions = {name: ids.repeat(len(lengths) // len(ids)) for name, ids in batch.conditions.items()}
        encoded: Encoded = self(batch.features, lengths, conditions)
        return encoded._replace(num_frames=tuple(map(self.encoder.output_lengths, batch.num_frames)))

    @property
    def reference(self) -> Reference:
        """Functions that turn texts into training targets for this model."""
        head, stride = self.head, self.encoder.stride
        frames = self.encoder.output_lengths
        tapped = [block.stride for index, (_, block) in enumerate(self.encoder.named_blocks()) if index in head.taps]
        min_frames = partial(_min_frames, head.min_frames, max([stride, *tapped]), stride)
        cells = partial(_cells, head.cells, min([stride, *tapped]), stride)
        tags = language_tags(self.labels.ids(LANGUAGE), self.tokenizer.names) if LANGUAGE in self.labels.names else {}
        ends = {language: f" {tag}" for language, tag in tags.items()}
        end = [token for token, name in enumerate(self.tokenizer.names) if name == END_OF_UTTERANCE]
        encoders = getattr(self.tokenizer, "encoders", {})
        return Reference(self.tokenizer.encode, min_frames, frames, cells, head.views, self.labels, ends, encoders, end)

    @property
    def depths(self) -> dict[str, int]:
        """Depths of the encoder's weights, from which an optimizer can derive their learning rates."""
        return depths_in(self, self.encoder)

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


def _min_frames(of_head: Callable[[list[int]], int], largest_stride: int, stride: int, tokens: list[int]) -> int:
    """Return the number of encoder frames with which the tapped block of the largest stride has enough frames."""
    return -(-of_head(tokens) * largest_stride // stride)


def _cells(
    of_head: Callable[[Lengths, Lengths], Lengths], smallest_stride: int, stride: int, frames: Lengths, tokens: Lengths
) -> Lengths:
    """Return the cells of the tapped block of the smallest stride, which has the most frames."""
    return of_head(frames * stride // smallest_stride, tokens)
