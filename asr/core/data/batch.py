"""Examples and batches; `collate` pads examples to a batch and stores their lengths before padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.core.data.labels import NO_LABELS, Labels
from asr.core.data.manifest import Utterance
from asr.interfaces import Targets

AnyBatch = TypeVar("AnyBatch", bound=Any)  # any dataclass with tensors


@dataclass(frozen=True, slots=True)
class Example:
    """One utterance, ready for the encoder.

    Shapes: features and each of other_views (T, F); tokens (U,), empty if no reference is needed.
    """

    utterance: Utterance
    features: Tensor
    tokens: Tensor
    other_views: tuple[Tensor, ...] = ()


class Rejected(NamedTuple):
    """An utterance that could not be converted to an example, and the reason."""

    utterance: Utterance
    reason: str


def on_device(batch: AnyBatch, device: torch.device | str, non_blocking: bool = False) -> AnyBatch:
    """Move the tensors of a batch to a device."""
    return _change_tensors(batch, lambda tensor: tensor.to(device, non_blocking=non_blocking))


def page_locked(batch: AnyBatch) -> AnyBatch:
    """Copy the tensors of a batch to page-locked memory, so that copies to a GPU run in the background."""
    return _change_tensors(batch, Tensor.pin_memory)


def _change_tensors(batch: AnyBatch, change: Callable[[Tensor], Tensor]) -> AnyBatch:
    """Apply a function to the tensors of a batch, of its mappings, and of its fields of type `Batch`."""
    changed: dict[str, Any] = {}
    for name, value in ((each.name, getattr(batch, each.name)) for each in fields(batch)):
        if isinstance(value, Tensor):
            changed[name] = change(value)
        elif isinstance(value, Mapping):
            changed[name] = {key: change(tensor) for key, tensor in value.items()}
        elif isinstance(value, Batch):
            changed[name] = _change_tensors(value, change)
    return replace(batch, **changed)


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded examples, and the planned utterances that could not be converted to examples.

    Shapes: features (B, T, F), feature_lengths (B,); targets: tokens (B, U), token_lengths (B,); conditions (B,) each,
    ids of the utterances' labels. `num_frames` are the feature_lengths, which stay on the CPU. Values in the padding
    are never used. With several views, features are (views * B, T, F) and feature_lengths (views * B,): the first view
    of all utterances, then the second view of all utterances.
    """

    features: Tensor
    feature_lengths: Tensor
    targets: Targets
    utterances: tuple[Utterance, ...]
    rejected: tuple[Rejected, ...]
    conditions: Mapping[str, Tensor] = field(default_factory=dict)
    num_frames: tuple[int, ...] = ()

    to = on_device
    pin_memory = page_locked

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def ids(self) -> list[str]:
        """Ids of the utterances."""
        return [utterance.id for utterance in self.utterances]

    @property
    def sizes(self) -> Tensor:
        """Number of feature frames of each view, without padding, (views * B,)."""
        return self.feature_lengths

    @property
    def padded_size(self) -> int:
        """Number of feature frames, including padding."""
        return self.features.shape[0] * self.features.shape[1]

    @property
    def contents(self) -> dict[str, Any]:
        """Features, targets and conditions, by name."""
        features = {"features": self.features, "feature_lengths": self.feature_lengths}
        return {**features, **self.targets, "conditions": self.conditions}

    @property
    def tokens(self) -> Tensor:
        """Tokens, (B, U)."""
        return self.targets["tokens"]

    @property
    def token_lengths(self) -> Tensor:
        """Number of tokens of each utterance, (B,)."""
        return self.targets["token_lengths"]


def collate(examples: Sequence[Example | Rejected], labels: Labels = NO_LABELS) -> Batch:
    """Pad examples to the longest; the batch lists rejected utterances separately.

    The batch has conditions for `labels`.
    """
    views = views_of(examples)
    features = pad_sequence(views, batch_first=True) if views else torch.zeros(0, 0, 0)  # (B, T, F)
    num_frames = tuple(len(view) for view in views)
    feature_lengths = torch.tensor(num_frames, dtype=torch.int64)
    batch = batch_without_features(examples, labels)
    return replace(batch, features=features, feature_lengths=feature_lengths, num_frames=num_frames)


def batch_without_features(examples: Sequence[Example | Rejected], labels: Labels = NO_LABELS) -> Batch:
    """Make a batch whose features and feature_lengths are empty."""
    good = [example for example in examples if isinstance(example, Example)]
    return Batch(
        torch.zeros(0, 0, 0),
        torch.zeros(0, dtype=torch.int64),
        dict(zip(("tokens", "token_lengths"), padded_tokens([example.tokens for example in good]), strict=True)),
        utterances=tuple(example.utterance for example in good),
        rejected=tuple(example for example in examples if isinstance(example, Rejected)),
        conditions=labels.conditions([example.utterance.labels for example in good]),
    )


def padded_tokens(texts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad the tokens of B texts, (U,) each, to tokens (B, U) and token_lengths (B,)."""
    tokens = pad_sequence(list(texts), batch_first=True) if texts else torch.zeros(0, 0, dtype=torch.int64)
    return tokens, torch.tensor([len(text) for text in texts], dtype=torch.int64)


def views_of(examples: Sequence[Example | Rejected]) -> list[Any]:
    """Return the views of the examples that were not rejected: all first views, then all second views."""
    views = [(example.features, *example.other_views) for example in examples if isinstance(example, Example)]
    return [view for column in zip(*views, strict=True) for view in column]
