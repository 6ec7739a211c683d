"""Which utterances of a manifest can be trained on, and why the others cannot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from asr.data.dataset import Reference, SpeedPerturbation
from asr.data.token_counts import TokenCounts
from asr.data.utterances import Utterances
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


@dataclass(frozen=True)
class Selection:
    """The utterances to train on, and those that were left out.

    Args:
        utterances: to train on, N of them.
        counts: their tokens.
        dropped: reason to the utterances that were left out for it.
    """

    utterances: Utterances
    counts: TokenCounts
    dropped: dict[str, Utterances]


def select(
    utterances: Utterances,
    counts: TokenCounts,
    features: Features,
    reference: Reference,
    bounds: SelectionBounds,
    max_cells: float | None = None,
    added_seconds: float = 0.0,
) -> Selection:
    """Keep the utterances that can be trained on: some text, a duration within bounds, tokens that fit the frames.

    What augmentation adds, up to `added_seconds`, counts for the size. An utterance that fails several conditions is
    dropped for the first of them.
    """

    def num_frames(seconds: Tensor) -> Tensor:
        """Count the encoder's."""
        samples = (seconds * features.sample_rate).round().long()
        frames: Tensor = reference.output_lengths(features.num_frames(samples))
        return frames

    durations, views = utterances.durations, f"; its {reference.views} views share a batch"
    views = views if reference.views > 1 else ""
    conditions = {
        "the text is empty once normalised": counts.num_tokens == 0,
        f"longer than {bounds.max_seconds:g} s ({_LIMITS}{views})": durations > bounds.max_seconds,
        f"shorter than data.min_seconds={bounds.min_seconds:g}": durations < bounds.min_seconds,
        TEXT_TOO_LONG: num_frames(durations) < counts.min_frames,
    }
    if max_cells is not None:
        cells = reference.cells(num_frames(durations + added_seconds), counts.num_tokens)
        reason = f"the head's largest tensor has more than {max_cells:,.0f} numbers for it (data.max_cells{views})"
        conditions[reason] = torch.as_tensor(cells > max_cells).expand(len(utterances))
    kept = ~torch.stack([*conditions.values()]).any(dim=0)
    if bounds.max_train_utterances is not None:
        beyond = kept.cumsum(0) - kept.long() >= bounds.max_train_utterances
        conditions = {f"beyond the first data.max_train_utterances={bounds.max_train_utterances}": beyond} | conditions
        kept &= ~beyond
    dropped, left = {}, ~kept
    for reason, fails in conditions.items():
        dropped[reason] = (left & fails).nonzero()[:, 0]
        left &= ~fails
    by_first = sorted((item for item in dropped.items() if len(item[1])), key=lambda item: int(item[1][0]))
    return Selection(
        utterances.select(kept.nonzero()[:, 0].numpy()),
        TokenCounts(counts.num_tokens[kept], counts.min_frames[kept]),
        {reason: utterances.select(positions.numpy()) for reason, positions in by_first},
    )


def check_dropped(dropped: Mapping[str, Utterances], num_given: int, max_fraction: float) -> None:
    """Check that few utterances were dropped because the model has too few frames for their tokens.

    Args:
        dropped: reason to the utterances that were left out for it.
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
    num_samples = (selection.utterances.durations * features.sample_rate).round().long()
    num_frames = [
        reference.output_lengths(features.num_frames(speed.num_samples(num_samples, factor)))
        for factor in speed.factors
    ]
    return torch.stack([frames >= selection.counts.min_frames for frames in num_frames], dim=1)
