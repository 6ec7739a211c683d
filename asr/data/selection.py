"""Which utterances of a manifest can be trained on, and why the others cannot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from asr.data.blocks import in_blocks
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

    Columns are worked on in blocks, so that ten million utterances take little memory. What augmentation adds, up to
    `added_seconds`, counts for the size. An utterance that fails several conditions is dropped for the first of them.
    """

    views = f"; its {reference.views} views share a batch" if reference.views > 1 else ""
    reasons = [
        "the text is empty once normalised",
        f"longer than {bounds.max_seconds:g} s ({_LIMITS}{views})",
        f"shorter than data.min_seconds={bounds.min_seconds:g}",
        TEXT_TOO_LONG,
        f"the head's largest tensor has more than {max_cells or 0:,.0f} numbers for it (data.max_cells{views})",
        f"beyond the first data.max_train_utterances={bounds.max_train_utterances}",
    ]
    kept, beyond = len(reasons), len(reasons) - 1

    def num_frames(seconds: Tensor) -> Tensor:
        """Count the encoder's."""
        samples = (seconds * features.sample_rate).round().long()
        frames: Tensor = reference.output_lengths(features.num_frames(samples))
        return frames

    def outcome(seconds: Tensor, num_tokens: Tensor, min_frames: Tensor) -> Tensor:
        """Return the number of the first reason to drop each utterance, or `kept`, (n,) uint8."""
        fails = [
            num_tokens == 0,
            seconds > bounds.max_seconds,
            seconds < bounds.min_seconds,
            num_frames(seconds) < min_frames,
        ]
        if max_cells is not None:
            fails.append(torch.as_tensor(reference.cells(num_frames(seconds + added_seconds), num_tokens) > max_cells))
        first = torch.full((len(seconds),), kept, dtype=torch.uint8)
        for place, fail in reversed(list(enumerate(fails))):
            first[fail.expand(len(seconds))] = place
        return first

    outcomes = in_blocks(outcome, utterances.durations, counts.num_tokens, counts.min_frames)
    if bounds.max_train_utterances is not None:
        places = (outcomes == kept).nonzero()[:, 0]
        if len(places) >= bounds.max_train_utterances:
            outcomes[places[bounds.max_train_utterances - 1] + 1 :] = beyond
    is_kept = outcomes == kept
    if bool(is_kept.all()):
        return Selection(utterances, counts, {})
    dropped = {reason: (outcomes == place).nonzero()[:, 0] for place, reason in enumerate(reasons)}
    by_first = sorted((item for item in dropped.items() if len(item[1])), key=lambda item: int(item[1][0]))
    return Selection(
        utterances.select(is_kept.nonzero()[:, 0].numpy()),
        TokenCounts(counts.num_tokens[is_kept], counts.min_frames[is_kept]),
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

    def fit(seconds: Tensor, min_frames: Tensor) -> Tensor:
        num_samples = (seconds * features.sample_rate).round().long()
        num_frames = [
            reference.output_lengths(features.num_frames(speed.num_samples(num_samples, factor)))
            for factor in speed.factors
        ]
        return torch.stack([frames >= min_frames for frames in num_frames], dim=1)

    return in_blocks(fit, selection.utterances.durations, selection.counts.min_frames)
