"""The batch plan: the utterances of each batch, the batches of each rank, and their order.

A plan is a function of (durations, bounds, seed, epoch, world size). Every rank computes the whole plan and uses only
its own batches. There is no loop over utterances, so planning a million utterances takes about a second.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

from asr.base.settings.read import check
from asr.base.settings.rule import Rule, above, number, or_null, whole
from asr.base.system.seeds import derive_seed
from asr.core.data.blocks import BLOCK, in_blocks
from asr.core.data.dataset import Item
from asr.errors import InputError, shown

# In an epoch of K batches, a jitter of J batches adds a fraction of about J / K of padding, and a fraction of about
# 1 / (2 * J) of an utterance's batch-mates stays the same. The limit J = MAX_JITTER * sqrt(K) keeps both fractions
# small if K is small. An hour of speech has 183 batches, so J = 5.4; padding is 1.8 %, and 94 % of the batch-mates
# change. J = 8 would give 2.5 % padding and change 96 % of the batch-mates.
MAX_JITTER = 0.4

AUTO = "auto"  # value of data.batch_seconds that a training replaces by a number before its first plan
POSITIVE = above(0)
SECONDS = Rule(f"{POSITIVE.words}, or {AUTO}", lambda value: value == AUTO or POSITIVE.holds(value))
LESS_MEMORY = "Lower data.batch_seconds, data.max_seconds or data.max_cells, or set gradient_checkpointing=true"


@dataclass(frozen=True)
class BatchBounds:
    """Limits of the size of a batch; an utterance that alone exceeds a limit is the only utterance of its batch.

    Args:
        batch_seconds: maximum size of a padded batch in seconds: longest duration times number of utterances; AUTO: the
            number is not found yet.
        max_utterances: maximum number of utterances.
        max_squared_seconds: maximum of (longest duration)**2 times number of utterances, proportional to the memory of
            attention; None: no limit.
        max_cells: maximum number of elements of the head's largest tensor, proportional to the memory of a transducer;
            None: no limit.

    Raises:
        InputError: a limit is invalid.
    """

    batch_seconds: Annotated[float | str, SECONDS]
    max_utterances: Annotated[int, whole(1)]
    max_squared_seconds: Annotated[float | None, or_null(above(0))] = None
    max_cells: Annotated[float | None, or_null(above(0, 2**40))] = None

    def __post_init__(self) -> None:
        check(self, "data")

    @property
    def is_auto(self) -> bool:
        """Whether `batch_seconds` is not found yet."""
        return self.batch_seconds == AUTO

    @property
    def seconds(self) -> float:
        """`batch_seconds` as a number.

        Raises:
            InputError: the number is not found yet.
        """
        if isinstance(self.batch_seconds, str):
            must = f"data.batch_seconds must be a number here; got {shown(self.batch_seconds)}"
            raise InputError(f"{must}. python -m asr.plan data.batch_seconds={AUTO} finds the number.")
        return self.batch_seconds

    def shared(self, views: int) -> "BatchBounds":
        """Return the bounds for batches that contain each utterance `views` times."""
        if views == 1:
            return self
        squared = self.max_squared_seconds and self.max_squared_seconds / views
        cells = self.max_cells and self.max_cells / views
        return BatchBounds(self.seconds / views, max(1, self.max_utterances // views), squared, cells)

    def longest_utterance(self) -> float:
        """Return the maximum duration of a single utterance, in seconds."""
        if self.max_squared_seconds is None:
            return self.seconds
        return min(self.seconds, math.sqrt(self.max_squared_seconds))

    @overload
    def hold(self, longest: float, number: int, cells: float = 0) -> bool: ...

    @overload
    def hold(self, longest: Tensor, number: Tensor, cells: Tensor | float = 0) -> Tensor: ...

    def hold(self, longest: Any, number: Any, cells: Any = 0) -> Any:
        """Return whether `number` utterances fit into a batch.

        Args:
            longest: duration of the longest utterance, in seconds.
            number: number of utterances.
            cells: number of elements of the head's largest tensor per utterance.
        """
        fits = (longest * number <= self.seconds) & (number <= self.max_utterances)
        if self.max_squared_seconds is not None:
            fits &= longest * longest * number <= self.max_squared_seconds
        if self.max_cells is not None:
            fits &= cells * number <= self.max_cells
        return fits

    def fill(self, durations: Tensor, cells: Tensor | float = 0) -> Tensor:
        """Return the fraction of a full batch that each utterance takes up, at most 1.

        A full batch here contains only utterances of this size.
        """
        parts = (durations / self.seconds).clamp(min=1 / self.max_utterances)
        if self.max_squared_seconds is not None:
            parts = parts.maximum(durations * durations / self.max_squared_seconds)
        if self.max_cells is not None:
            parts = parts.maximum(torch.as_tensor(cells / self.max_cells, dtype=parts.dtype))
        return parts.clamp(max=1)


@dataclass(frozen=True)
class Texts:
    """Token counts of texts, and the memory that a head needs for them, which limits the size of a batch.

    Args:
        num_tokens: number of tokens of each utterance, (N,) float64.
        cells: function of the longest duration and of the largest number of tokens in a batch. It returns the number
            of elements of the head's largest tensor per utterance. Its arguments and its result have the same shape.
    """

    num_tokens: Tensor
    cells: Callable[[Tensor, Tensor], Tensor]

    def of(self, indices: Tensor | slice) -> "Texts":
        """Return the `Texts` of the utterances with these indices, in this order."""
        return replace(self, num_tokens=self.num_tokens[indices])


@dataclass(frozen=True)
class BatchOrder:
    """The order of utterances in an epoch.

    Args:
        jitter: maximum random shift of an utterance, in batches, from its position in the order of durations. The shift
            changes its batch-mates between epochs. The maximum is smaller if there are few batches (`MAX_JITTER`).
        sorted_epochs: number of initial epochs whose steps are sorted from short to long utterances, because CTC then
            converges sooner (SortaGrad: Amodei et al. 2015, arXiv:1512.02595, section 3.2).
    """

    jitter: Annotated[float, number(0)]
    sorted_epochs: Annotated[int, whole(0)]

    def __post_init__(self) -> None:
        check(self, "data")


@dataclass(frozen=True)
class Plan:
    """The batches of all ranks; `len()` is the number of steps, equal to the number of batches per rank.

    Args:
        order: indices of the utterances, batch by batch, (N,) int32.
        edges: start of each batch in `order`, and the end of the last batch, (steps * world_size + 1,).
        steps: index of the group of `world_size` neighbouring batches that each step processes, (steps,); a
            permutation.
        world_size: number of ranks.
    """

    order: Tensor
    edges: Tensor
    steps: Tensor
    world_size: int

    def __len__(self) -> int:
        return len(self.steps)

    def batch(self, step: int, rank: int) -> list[int]:
        """Return the indices of the utterances of one batch."""
        number = int(self.steps[step]) * self.world_size + rank
        start, end = self.edges[number : number + 2].tolist()
        indices: list[int] = self.order[start:end].tolist()
        return indices

    def sizes(self) -> Tensor:
        """Count the utterances of each batch, (steps, world_size)."""
        return self.edges.diff().view(-1, self.world_size)[self.steps]

    def longest(self, durations: Tensor) -> Tensor:
        """Return the longest duration in each batch, (steps, world_size); `durations` covers all utterances, (N,)."""
        longest = torch.segment_reduce(durations[self.order], "max", lengths=self.edges.diff())
        return longest.view(-1, self.world_size)[self.steps]

    def first_steps(self, number: int) -> Tensor:
        """Return the indices of the utterances of all ranks in the first `number` steps."""
        of_step = torch.empty_like(self.steps)
        of_step[self.steps] = torch.arange(len(self))
        step = of_step.repeat_interleave(self.edges[:: self.world_size].diff())
        return self.order[step < number]

    def labels(self) -> Tensor:
        """Return the index of each utterance's batch, (N,)."""
        labels = torch.empty(len(self.order), dtype=torch.int64)
        labels[self.order] = torch.arange(len(self.edges) - 1).repeat_interleave(self.edges.diff())
        return labels


def cut_batches(durations: Tensor, bounds: BatchBounds, texts: Texts | None = None) -> Tensor:
    """Split utterances, in the given order, into batches, each as large as the bounds allow.

    An utterance that alone exceeds a bound is the only utterance of its batch.

    Args:
        durations: durations of the utterances in seconds, (N,).
        bounds: limits of each batch.
        texts: texts of the utterances; None: texts do not influence the size of a batch.

    Returns:
        The start of each batch, followed by N, (batches + 1,).
    """
    edges, number = [0], len(durations)
    reach = 2 * min(bounds.max_utterances, number)  # number of utterances read beyond a block, for its last batch
    while (first := edges[-1]) < number:
        block = slice(first, first + BLOCK + reach)
        ends = _batch_ends(durations[block], bounds, texts and texts.of(block))[:BLOCK].numpy()
        while edges[-1] < min(first + BLOCK, number):
            edges.append(first + int(ends[edges[-1] - first]))
    return torch.tensor(edges)


def _batch_ends(durations: Tensor, bounds: BatchBounds, texts: Texts | None) -> Tensor:
    """Return, for each utterance, the end of the batch that would start at this utterance, (N,) int64.

    All ends are computed together: for decreasing k, a batch is extended by 2**k utterances if the extended batch is
    within the bounds.
    """
    lengths = durations[None] if texts is None else torch.stack([durations, texts.num_tokens])
    maxima = [lengths]  # maxima[k][:, i]: maximum of utterances i to i + 2**k - 1
    while 2 ** len(maxima) < min(bounds.max_utterances, len(durations)):
        width = 2 ** (len(maxima) - 1)
        maxima.append(torch.maximum(maxima[-1][:, :-width], maxima[-1][:, width:]))
    starts = torch.arange(len(durations))
    ends, longest = starts + 1, lengths.clone()
    for level in reversed(range(len(maxima))):
        grown = ends + 2**level
        inside = grown <= len(durations)
        with_more = longest.maximum(maxima[level][:, ends.clamp(max=maxima[level].shape[1] - 1)])
        cells = 0 if texts is None else texts.cells(*with_more)
        fits = inside & bounds.hold(with_more[0], grown - starts, cells)
        ends, longest = torch.where(fits, grown, ends), torch.where(fits, with_more, longest)
    return ends


def plan_training(
    durations: Tensor,
    bounds: BatchBounds,
    order: BatchOrder,
    *,
    seed: int,
    epoch: int,
    world_size: int,
    part: int = 0,
    texts: Texts | None = None,
) -> Plan:
    """Plan one epoch, in which every utterance occurs once; a step has `world_size` batches of similar length.

    Utterances are sorted by duration. Each position in this order, measured in batches, is shifted at random, so that
    batch-mates change between epochs. Utterances are sorted by the shifted positions and split into batches. Each
    group of `world_size` neighbouring batches is a step. Steps are shuffled, except in the first `order.sorted_epochs`
    epochs, where they stay sorted.

    Args:
        durations: durations in seconds after the epoch's speed perturbation, (N,) float64.
        bounds: limits of each batch.
        order: order of the utterances.
        seed: the run's seed.
        epoch: number of the epoch, from 0.
        world_size: number of ranks.
        part: number of times that the epoch has been planned again because the number of ranks changed.
        texts: texts of the utterances; None: texts do not influence the size of a batch.
    """
    if len(durations) < world_size:
        raise InputError(f"each rank must have an utterance; got {len(durations)} utterances for {world_size} ranks.")
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, "plan", part))
    by_duration = _stable_argsort(durations)
    if texts is None:
        sort_keys = in_blocks(lambda index: bounds.fill(durations[index]), by_duration)
    else:
        num_tokens, cells = texts.num_tokens, texts.cells
        sort_keys = in_blocks(
            lambda index: bounds.fill(durations[index], cells(durations[index], num_tokens[index])), by_duration
        )
    sort_keys.cumsum_(0)
    reach = min(order.jitter, MAX_JITTER * math.sqrt(float(sort_keys[-1])))
    moves = torch.rand(len(durations), generator=generator, dtype=torch.float64)
    sort_keys += moves.mul_(2).sub_(1).mul_(reach)
    del moves
    indices = by_duration[_stable_argsort(sort_keys)].int()
    del sort_keys, by_duration
    edges = _split_until_divisible(cut_batches(durations[indices], bounds, texts and texts.of(indices)), world_size)
    number = (len(edges) - 1) // world_size
    steps = torch.arange(number) if epoch < order.sorted_epochs else torch.randperm(number, generator=generator)
    return Plan(indices, edges, steps, world_size)


def _stable_argsort(values: Tensor) -> Tensor:
    """Return the indices that sort values (N,), computed by numpy, because torch also allocates a sorted copy."""
    return torch.from_numpy(np.argsort(values.numpy(), kind="stable"))


def _split_until_divisible(edges: Tensor, divisor: int) -> Tensor:
    """Halve the largest batches until the number of batches is a multiple of `divisor`; return the new edges."""
    lacking = -(len(edges) - 1) % divisor
    batches = list(zip((-edges.diff()).tolist(), edges.tolist(), strict=False)) if lacking else []
    heapq.heapify(batches)  # the largest batch comes first; of equally large batches, the earliest
    added = []
    for _ in range(lacking):
        negative, start = batches[0]
        if negative == -1:
            must = "the number of batches must be a multiple of the number of ranks, with an utterance in each"
            raise InputError(f"{must}; got {len(batches)} batches of one utterance for {divisor} ranks.")
        half = -negative // 2
        heapq.heapreplace(batches, (-half, start))
        heapq.heappush(batches, (negative + half, start + half))
        added.append(start + half)
    return torch.cat([edges, torch.tensor(added, dtype=edges.dtype)]).sort().values


def changed_mates(before: Plan, after: Plan) -> float:
    """Return the fraction of batch-mates that changes between two plans, averaged over utterances.

    Utterances without batch-mates do not count; the result is 0 if no utterance has batch-mates.
    """
    labels, later = before.labels(), after.labels()
    mates = torch.bincount(labels)[labels] - 1
    pairs, inverse = torch.unique(labels * (int(later.max()) + 1) + later, return_inverse=True)
    num_kept = torch.bincount(inverse, minlength=len(pairs))[inverse] - 1
    has_mates = mates > 0
    return float((1 - num_kept[has_mates].double() / mates[has_mates]).mean()) if bool(has_mates.any()) else 0.0


@dataclass(frozen=True)
class Speeds:
    """Speed factors of utterances, stored in one byte per utterance.

    Args:
        values: distinct speed factors, (K,) float64.
        numbers: index in `values` of the factor of each utterance, (N,) uint8.
    """

    values: Tensor
    numbers: Tensor

    @classmethod
    def normal(cls, number: int) -> "Speeds":
        """Return speed factors of 1.0 for this number of utterances."""
        return cls(torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.uint8).expand(number))

    def of(self, indices: Sequence[int] | slice) -> Tensor:
        """Return the factors of some utterances, float64."""
        return self.values[self.numbers[indices].int()]

    def played(self, durations: Tensor) -> Tensor:
        """Divide each duration in seconds, (N,), by the utterance's speed factor."""
        return in_blocks(lambda seconds, numbers: seconds / self.values[numbers.int()], durations, self.numbers)


def draw_factors(factors: Sequence[float], feasible: Tensor, *, seed: int, epoch: int) -> tuple[Speeds, int]:
    """Draw each utterance's speed factor for one epoch.

    Args:
        factors: K speed factors to draw from.
        feasible: whether each utterance may have each speed, (N, K) bool; if the drawn speed is not allowed, speed 1.0
            is used.
        seed: the run's seed.
        epoch: number of the epoch, from 0.

    Returns:
        The speed factors of the N utterances, and the number of utterances that have speed 1.0 because their drawn
        factor was not feasible.
    """
    values = list(factors) if 1.0 in factors else [*factors, 1.0]
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, "speed"))
    drawn = torch.randint(len(factors), (len(feasible), 1), generator=generator)
    fits = feasible.gather(1, drawn)[:, 0]
    numbers = drawn[:, 0].byte()
    numbers[~fits] = values.index(1.0)
    return Speeds(torch.tensor(values, dtype=torch.float64), numbers), int((~fits).sum())


class BatchSampler(Sampler[list[Item]]):
    """Yield the batches of an evaluation as items for a DataLoader: one pass, at speed 1.0."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Item]]:
        for batch in self.batches:
            yield [Item(0, position, 1.0) for position in batch]


def plan_evaluation(durations: Sequence[float], bounds: BatchBounds, *, rank: int, world_size: int) -> list[list[int]]:
    """Plan one rank's batches of an evaluation; over all ranks, every utterance occurs exactly once.

    The longest utterances come first, so that an evaluation that runs out of memory fails early.
    """
    seconds = torch.tensor(durations, dtype=torch.float64)
    order = torch.argsort(-seconds, stable=True)
    sizes = cut_batches(seconds[order], bounds).diff().tolist()
    batches = [batch.tolist() for batch in order.split(sizes)] if sizes else []
    batches += [[] for _ in range(world_size - len(batches))]  # every rank must take part in collective operations
    return batches[rank::world_size]
