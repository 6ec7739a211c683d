"""Which utterances of a manifest can be trained on, and why the others cannot."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch
from torch import Tensor

from asr.data.dataset import Reference, SpeedPerturbation
from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.interfaces import Features
from asr.settings.read import check
from asr.settings.rule import above, number, or_null, whole

TEXT_TOO_LONG = "the text is too long for its audio: CTC needs a frame for each token and between equal ones"
FEWER_TOKENS = "Choose fewer tokens (tokenizer=sentencepiece) or more frames (an encoder of smaller stride)"
_LIMITS = "the least of data.max_seconds, data.batch_seconds and the square root of data.max_squared_seconds"


@dataclass(frozen=True)
class SelectionBounds:
    """Which utterances are trained on; the others are dropped, counted and named.

    Args:
        min_seconds: duration, at least.
        max_seconds: duration, at most.
        max_train_utterances: how many, at most: the first ones; None: no such bound.

    Raises:
        InputError: no duration is within them.
    """

    min_seconds: Annotated[float, number(0)]
    max_seconds: Annotated[float, above(0)]
    max_train_utterances: Annotated[int | None, or_null(whole(1))] = None

    def __post_init__(self) -> None:
        check(self, "data")


@dataclass
class Selection:
    """The utterances to train on, and what was left out.

    Args:
        utterances: kept, N of them.
        min_frames: encoder frames that the tokens of each need at least, (N,).
        num_tokens: of each, (N,).
        dropped: reason to the ids that were left out for it.
    """

    utterances: list[Utterance]
    min_frames: Tensor
    num_tokens: Tensor
    dropped: dict[str, list[str]] = field(default_factory=dict)


def select(
    utterances: Sequence[Utterance],
    features: Features,
    reference: Reference,
    bounds: SelectionBounds,
    max_cells: float | None = None,
    added_seconds: float = 0.0,
) -> Selection:
    """Keep what can be trained on: some text, a bearable size, and tokens that fit the frames at speed 1.0.

    What augmentation adds, up to `added_seconds`, counts for the size.
    """
    kept: list[Utterance] = []
    needed: list[int] = []
    num_tokens: list[int] = []
    dropped: dict[str, list[str]] = defaultdict(list)

    def num_frames(seconds: float) -> int:
        """Count the encoder's."""
        frames: int = reference.output_lengths(features.num_frames(round(seconds * features.sample_rate)))
        return frames

    views = f"; its {reference.views} views share a batch" if reference.views > 1 else ""
    for utterance in utterances:
        if len(kept) == bounds.max_train_utterances:
            dropped[f"beyond the first data.max_train_utterances={len(kept)}"].append(utterance.id)
            continue
        tokens = reference.encode(utterance.text)
        frames = num_frames(utterance.duration)
        if not tokens:
            reason = "the text is empty once normalised"
        elif utterance.duration > bounds.max_seconds:
            reason = f"longer than {bounds.max_seconds:g} s ({_LIMITS}{views})"
        elif utterance.duration < bounds.min_seconds:
            reason = f"shorter than data.min_seconds={bounds.min_seconds:g}"
        elif frames < reference.min_frames(tokens):
            reason = TEXT_TOO_LONG
        elif (
            max_cells is not None
            and reference.cells(num_frames(utterance.duration + added_seconds), len(tokens)) > max_cells
        ):
            reason = f"the head's largest tensor has more than {max_cells:,.0f} numbers for it (data.max_cells{views})"
        else:
            kept.append(utterance)
            needed.append(reference.min_frames(tokens))
            num_tokens.append(len(tokens))
            continue
        dropped[reason].append(utterance.id)
    min_frames = torch.tensor(needed, dtype=torch.int64)
    return Selection(kept, min_frames, torch.tensor(num_tokens, dtype=torch.int64), dict(dropped))


def check_dropped(dropped: Mapping[str, Sequence[str]], num_given: int, max_fraction: float) -> None:
    """Check that few utterances were dropped because the model has too few frames for their tokens.

    Args:
        dropped: reason to the ids that were left out for it.
        num_given: number of utterances that were chosen from.
        max_fraction: `data.max_dropped_fraction`.

    Raises:
        InputError: more were; what to choose.
    """
    number = len(dropped.get(TEXT_TOO_LONG, ()))
    if number > max_fraction * num_given:
        must = f"at most data.max_dropped_fraction={max_fraction:g} of the training utterances may be dropped because"
        why = f"{must} {TEXT_TOO_LONG}; got {number:,} of {num_given:,}"
        raise InputError(f"{why}. {FEWER_TOKENS}, or raise data.max_dropped_fraction.")


def feasible_factors(
    selection: Selection, features: Features, reference: Reference, speed: SpeedPerturbation
) -> Tensor:
    """Tell at which speeds each utterance's tokens still fit its frames, (N, number of factors) bool."""
    durations = torch.tensor([utterance.duration for utterance in selection.utterances], dtype=torch.float64)
    num_samples = (durations * features.sample_rate).round().long()
    num_frames = [
        reference.output_lengths(features.num_frames(speed.num_samples(num_samples, factor)))
        for factor in speed.factors
    ]
    return torch.stack([frames >= selection.min_frames for frames in num_frames], dim=1)
