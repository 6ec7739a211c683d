"""The training set: the selected utterances, the plan of each epoch, and the number of steps of a run."""

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from asr.base.text.numbers import counted, percent
from asr.core.data.batch import Batch, Example, collate
from asr.core.data.batch_plan import Plan, Texts, draw_factors, plan_training
from asr.core.data.blocks import in_blocks
from asr.core.data.dataset import Item, Reference, SpeedPerturbation
from asr.core.data.epoch_plan import EpochPlan, plan_current_part
from asr.core.data.labels import LANGUAGE
from asr.core.data.manifest import Utterance
from asr.core.data.mixture import Mixture
from asr.core.data.position import Position, start_of_epoch
from asr.core.data.selection import FEWER_TOKENS, TEXT_TOO_LONG, feasible_factors, select
from asr.core.data.settings import PlanSettings
from asr.core.data.token_counts import TokenCounts, count_tokens
from asr.core.data.utterances import Utterances
from asr.errors import InputError
from asr.interfaces import Features

MAX_PLANNED = 20_000_000  # maximum total number of utterances in the epochs that are planned to count a run's steps
MIN_PLANNED_EPOCHS = 2

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunBounds:
    """The end of a run: `trainer.max_epochs` or `trainer.max_steps`, whichever comes first.

    Args:
        max_epochs: number of epochs; None or not positive: no limit.
        max_steps: number of optimizer steps; None or not positive: no limit. At least one of `max_epochs` and
            `max_steps` must be a limit.
        accumulate: number of batches per process in an optimizer step.
    """

    max_epochs: int | None
    max_steps: int | None
    accumulate: int

    def __str__(self) -> str:
        given = {"trainer.max_epochs": self.max_epochs, "trainer.max_steps": self.max_steps}
        bounds = [f"{name}={bound}" for name, bound in given.items() if (bound or -1) > 0]
        return " or ".join(bounds) + (", whichever comes first" if len(bounds) > 1 else "")


def count_steps(
    num_batches: Callable[[Position], int], size: int, position: Position, step: int, bounds: RunBounds
) -> int:
    """Count the optimizer steps of a whole run; arguments that are not listed are as in `TrainingSet.total_steps`.

    The number of batches differs by 0.1 to 0.2 % between epochs. To start runs over large sets quickly, only the first
    epochs are planned to count their batches: up to `MAX_PLANNED` utterances in total, but at least two epochs. Later
    epochs are assumed to have the number of batches of the last planned epoch.

    Args:
        num_batches: returns the number of batches per rank in the part of an epoch that contains a position.
        size: number of utterances in an epoch.
    """
    max_steps = bounds.max_steps if bounds.max_steps and bounds.max_steps > 0 else sys.maxsize
    if not bounds.max_epochs or bounds.max_epochs < 0:
        return max_steps
    planned = max(MIN_PLANNED_EPOCHS, MAX_PLANNED // size)
    for _ in range(planned):
        if position.epoch >= bounds.max_epochs or step >= max_steps:
            return min(step, max_steps)
        batches = num_batches(position)
        step += math.ceil(batches / bounds.accumulate) - position.batch // bounds.accumulate
        position = start_of_epoch(position.epoch + 1, position.world_size)
    left = bounds.max_epochs - position.epoch
    if left > 0:
        logger.info("assuming the %d epochs after epoch %d have as many batches as that epoch", left, position.epoch)
        step += left * math.ceil(batches / bounds.accumulate)
    return min(step, max_steps)


class TrainingSet:
    """The training utterances, with speed factors and batches for each epoch.

    Args:
        utterances: utterances to select from, with normalised texts.
        features: converts a waveform to features.
        reference: converts a text to tokens.
        speed: speed perturbation; None: no perturbation.
        seed: seed of speed factors and plans.
        settings: settings of the selection and of the batch plan.
        added_seconds: maximum seconds that augmentation adds to an utterance.
        counts: token counts of the utterances; None: they are counted.

    Raises:
        InputError: no utterance is left; the message gives the reasons.
    """

    def __init__(
        self,
        utterances: Sequence[Utterance],
        features: Features,
        reference: Reference,
        speed: SpeedPerturbation | None,
        seed: int,
        settings: PlanSettings,
        added_seconds: float = 0.0,
        counts: TokenCounts | None = None,
    ) -> None:
        utterances = Utterances.of(utterances)
        self.features, self.reference, self.seed, self.settings = features, reference, seed, settings
        self._speed = speed
        self._bounds = settings.batches.shared(reference.views)
        self._added_seconds = added_seconds
        longest, max_cells = self._bounds.longest_utterance() - added_seconds, self._bounds.max_cells
        if longest <= 0:
            must = "a batch must have room for the seconds that augment.edges adds to an utterance"
            raise InputError(f"{must}; got up to {added_seconds:g} s. Raise data.batch_seconds.")
        bounds = replace(settings.selection, max_seconds=min(settings.selection.max_seconds, longest))
        counts = count_tokens(utterances, reference) if counts is None else counts
        selection = select(utterances, counts, features, reference, bounds, max_cells, added_seconds)
        self.num_given = len(utterances)
        self.utterances = selection.utterances
        self.dropped = selection.dropped
        if not self.utterances:
            why = "; ".join(f"{len(dropped)} {reason}" for reason, dropped in self.dropped.items())
            advice = f" {FEWER_TOKENS}." if TEXT_TOO_LONG in self.dropped else ""
            must = "at least one training utterance must remain"
            raise InputError(f"{must}; all were dropped: {why or 'the manifest is empty'}.{advice}")
        self.mixture = Mixture(
            *zip(*((len(part), part.parts[0].repeats) for part in self.utterances.split()), strict=True)
        )
        if len(self.mixture) == 0:
            must = "an epoch must have at least one utterance"
            means = ", ".join(f"{mean:g}" for mean in self.mixture.repeats)
            raise InputError(f"{must}; got {means} occurrences of each on average. Raise the weights of corpus.train.")
        durations, num_tokens = self.utterances.durations, selection.counts.num_tokens
        self._factors: tuple[float, ...] = (1.0,)
        self._feasible = torch.ones(len(self.utterances), 1, dtype=torch.bool)
        if speed is not None:
            self._factors = speed.factors
        # Limiting the head's largest tensor doubles the planning time, so it is done only if the limit may be reached.
        longest_played = durations.max()[None] / torch.tensor(self._factors).min() + added_seconds
        most = self._cells(longest_played, num_tokens.max())
        if speed is not None:

            def small_enough(seconds: Tensor, tokens: Tensor) -> Tensor:
                played = seconds[:, None] / torch.tensor(self._factors)
                small = played <= longest
                if max_cells is not None and most > max_cells:
                    small &= self._cells(played + added_seconds, tokens[:, None]) <= max_cells
                return small

            self._feasible = in_blocks(small_enough, durations, num_tokens)
            self._feasible &= feasible_factors(selection, features, reference, speed)
        self._texts = None
        if max_cells is not None and most * self._bounds.max_utterances > max_cells:
            self._texts = Texts(num_tokens.double(), self._cells)

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def num_bytes(self) -> int:
        """The size of the columns in bytes."""
        columns = [self._feasible, *([self._texts.num_tokens] if self._texts else [])]
        return self.utterances.num_row_bytes + sum(column.untyped_storage().nbytes() for column in columns)

    @property
    def epoch_hours(self) -> dict[str, float]:
        """The hours that each manifest contributes to an epoch, at speed 1.0, by the manifest's name."""
        parts = self.utterances.split()
        return {part.parts[0].name: part.hours * part.parts[0].repeats for part in parts}

    def describe_mixture(self) -> list[str]:
        """Return a line per manifest with its utterances, hours and share of an epoch; [] for a single manifest."""
        parts = list(self.utterances.split())
        if len(parts) == 1:
            return []
        hours = self.epoch_hours
        total = sum(hours.values())
        return [
            f"  {part.parts[0].name}: {counted(len(part), 'utterance')}, {part.hours:.2f} h, "
            f"{part.parts[0].repeats:.3g} times an epoch: {percent(hours[part.parts[0].name] / total)} of its hours"
            for part in parts
        ]

    def epoch(self, position: Position) -> EpochPlan:
        """Plan the part of an epoch that contains `position`, beginning with the first batch of that part.

        Speed factors are drawn once per epoch, so an utterance has the same factor in all parts of an epoch
        (`plan_current_part`).

        Raises:
            InputError: the position does not fit this training set, or there are fewer unused utterances than ranks.
        """
        occurrences = self.mixture.occurrences(self.seed, position.epoch)
        durations, feasible, texts = self.utterances.durations, self._feasible, self._texts
        if not self.mixture.is_plain:
            durations, feasible = durations[occurrences.rows], feasible[occurrences.rows]
            texts = texts and texts.of(occurrences.rows)
        speeds, kept_speed = draw_factors(self._factors, feasible, seed=self.seed, epoch=position.epoch)
        durations = speeds.played(durations).add_(self._added_seconds)

        def plan_part(left: Tensor | slice, world_size: int, part: int) -> Plan:
            return plan_training(
                durations[left],
                self._bounds,
                self.settings.order,
                seed=self.seed,
                epoch=position.epoch,
                world_size=world_size,
                part=part,
                texts=texts and texts.of(left),
            )

        plan = plan_current_part(len(occurrences), position, plan_part)
        return EpochPlan(position.epoch, plan, occurrences, durations, speeds, kept_speed, texts)

    def total_steps(self, position: Position, step: int, bounds: RunBounds) -> int:
        """Return the number of optimizer steps of the whole run: `step` plus the steps from `position` on.

        Speed factors and jitter are drawn for each epoch, so epochs differ in their number of batches (`count_steps`).

        Args:
            position: position of the run.
            step: number of optimizer steps completed at this position.
            bounds: limits of the run.
        """
        return count_steps(lambda position: len(self.epoch(position)), len(self.mixture), position, step, bounds)

    def num_frames(self, item: Item) -> int:
        """Return the maximum number of feature frames of an utterance, from its manifest line and its speed factor."""
        num_samples = round(self.utterances[item.row].duration * self.features.sample_rate)
        if self._speed is not None:
            num_samples = self._speed.num_samples(num_samples, item.factor)
        return self.features.num_frames(num_samples + round(self._added_seconds * self.features.sample_rate))

    def made_up(self, items: Sequence[Item], noise: torch.Generator) -> Batch:
        """Make a batch of noise that has the sizes and texts of these utterances, without reading audio."""
        examples = [self._made_up(item, noise) for item in items]
        return collate(examples, self.reference.labels)

    def _made_up(self, item: Item, noise: torch.Generator) -> Example:
        utterance = self.utterances[item.row]
        features, *views = torch.randn(self.reference.views, self.num_frames(item), self.features.dim, generator=noise)
        tokens = self.reference.tokens(utterance.text, utterance.labels.get(LANGUAGE))
        return Example(utterance, features, torch.tensor(tokens), tuple(views))

    def _cells(self, seconds: Tensor, num_tokens: Tensor) -> Tensor:
        """Return the number of elements of the head's largest tensor for utterances with these seconds and tokens."""
        frames = self.features.num_frames((seconds * self.features.sample_rate).round().long())
        cells: Tensor = self.reference.cells(self.reference.output_lengths(frames), num_tokens)
        return cells
