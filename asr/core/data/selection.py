"""Selection of the utterances for training; other utterances are dropped with a reason."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from asr.base.settings.read import check
from asr.base.settings.rule import above, number, or_null, whole
from asr.core.data.blocks import in_blocks
from asr.core.data.dataset import Reference, SpeedPerturbation
from asr.core.data.token_counts import TokenCounts
from asr.core.data.utterances import Utterances
from asr.errors import InputError
from asr.interfaces import Features

TEXT_TOO_LONG = "the text is too long for its audio: CTC needs a frame for each token and one between equal tokens"
FEWER_TOKENS = "Choose fewer tokens (tokenizer=sentencepiece) or more frames (an encoder with a smaller stride)"
_LIMITS = "the minimum of data.max_seconds, data.batch_seconds and the square root of data.max_squared_seconds"


@dataclass(frozen=True)
class SelectionBounds:
    """Conditions for training utterances; utterances that do not meet them are dropped, counted and named.

    Args:
        min_seconds: minimum duration.
        max_seconds: maximum duration.
        max_train_utterances: maximum number of utterances; later utterances are dropped. None: no limit.
    """

    min_seconds: Annotated[float, number(0)]
    max_seconds: Annotated[float, above(0)]
    max_train_utterances: Annotated[int | None, or_null(whole(1))] = None

    def __post_init__(self) -> None:
        check(self, "data")


@dataclass(frozen=True)
class Selection:
    """The selected and the dropped utterances.

    Args:
        utterances: N selected utterances.
        counts: token counts of the selected utterances.
        dropped: dropped utterances, by the reason.
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
    """Select the utterances that have a text, a duration within the bounds, and tokens that fit their frames.

    Columns are processed in blocks, so that ten million utterances need little memory. `max_cells` limits the size of
    the head's largest tensor for the duration plus `added_seconds`, the maximum that augmentation adds. The
    reason for which an utterance is dropped is the first condition that it fails.
    """

    views = f"; its {reference.views} views share a batch" if reference.views > 1 else ""
    reasons = [
        "the text is empty once normalised",
        f"longer than {bounds.max_seconds:g} s ({_LIMITS}{views})",
        f"shorter than data.min_seconds={bounds.min_seconds:g}",
        TEXT_TOO_LONG,
        f"the head's largest tensor needs more than {max_cells or 0:,.0f} elements (data.max_cells{views})",
        f"beyond the first data.max_train_utterances={bounds.max_train_utterances}",
    ]
    selected, beyond = len(reasons), len(reasons) - 1

    def num_frames(seconds: Tensor) -> Tensor:
        """Return the number of encoder frames."""
        samples = (seconds * features.sample_rate).round().long()
        frames: Tensor = reference.output_lengths(features.num_frames(samples))
        return frames

    def outcome(seconds: Tensor, num_tokens: Tensor, min_frames: Tensor) -> Tensor:
        """Return for each utterance the index of the first reason to drop it, or `selected`, (n,) uint8."""
        frames = num_frames(seconds)
        fails = [
            num_tokens == 0,
            seconds > bounds.max_seconds,
            seconds < bounds.min_seconds,
            frames < min_frames,
        ]
        if max_cells is not None:
            frames = num_frames(seconds + added_seconds) if added_seconds else frames
            fails.append(torch.as_tensor(reference.cells(frames, num_tokens) > max_cells))
        first = torch.full((len(seconds),), selected, dtype=torch.uint8)
        for index, fail in reversed(list(enumerate(fails))):
            first[fail.expand(len(seconds))] = index
        return first

    outcomes = in_blocks(outcome, utterances.durations, counts.num_tokens, counts.min_frames)
    if bounds.max_train_utterances is not None:
        positions_kept = (outcomes == selected).nonzero()[:, 0]
        if len(positions_kept) >= bounds.max_train_utterances:
            outcomes[positions_kept[bounds.max_train_utterances - 1] + 1 :] = beyond
    is_kept = outcomes == selected
    if bool(is_kept.all()):
        return Selection(utterances, counts, {})
    dropped = {reason: (outcomes == column).nonzero()[:, 0] for column, reason in enumerate(reasons)}
    by_first = sorted((item for item in dropped.items() if len(item[1])), key=lambda item: int(item[1][0]))
    return Selection(
        utterances.select(is_kept.nonzero()[:, 0].numpy()),
        TokenCounts(counts.num_tokens[is_kept], counts.min_frames[is_kept]),
        {reason: utterances.select(rows.numpy()) for reason, rows in by_first},
    )


def check_dropped(dropped: Mapping[str, Utterances], num_given: int, max_fraction: float) -> None:
    """Check the fraction of utterances that were dropped because their tokens do not fit their frames.

    Args:
        dropped: dropped utterances, by the reason.
        num_given: number of all utterances.
        max_fraction: `data.max_dropped_fraction`.
    """
    number = len(dropped.get(TEXT_TOO_LONG, ()))
    if number > max_fraction * num_given:
        must = f"at most data.max_dropped_fraction={max_fraction:g} of the training utterances may be dropped because"
        why = f"{must} {TEXT_TOO_LONG}; got {number:,} of {num_given:,}"
        raise InputError(f"{why}. {FEWER_TOKENS}, or raise data.max_dropped_fraction.")


def feasible_factors(
    selection: Selection, features: Features, reference: Reference, speed: SpeedPerturbation
) -> Tensor:
    """Return whether each utterance's tokens fit its frames at each speed, (N, number of factors) bool."""

    def fit_at(factor: float, num_samples: Tensor, min_frames: Tensor) -> Tensor:
        frames = reference.output_lengths(features.num_frames(speed.num_samples(num_samples, factor)))
        return torch.as_tensor(frames >= min_frames)

    def fit(seconds: Tensor, min_frames: Tensor) -> Tensor:
        num_samples = (seconds * features.sample_rate).round().long()
        at_all = fit_at(max(speed.factors), num_samples, min_frames)  # the maximum factor leaves the fewest frames
        fits = at_all[:, None].repeat(1, len(speed.factors))
        others = ~at_all
        for column, factor in enumerate(speed.factors):
            fits[others, column] = fit_at(factor, num_samples[others], min_frames[others])
        return fits

    return in_blocks(fit, selection.utterances.durations, selection.counts.min_frames)
