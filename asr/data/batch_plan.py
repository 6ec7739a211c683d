"""The batch plan: which utterances are padded together, and which rank trains on them, in what order.

A plan is a function of (durations, bounds, seed, epoch, world size) and of nothing else. Every rank computes the whole
plan and takes its share. There is no loop over utterances: a million of them are planned in about a second.
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

from asr.data.blocks import BLOCK, in_blocks
from asr.data.dataset import Item
from asr.data.seeds import derive_seed
from asr.errors import InputError
from asr.settings.read import check
from asr.settings.rule import above, number, or_null, whole

# With K batches, moving utterances by J batches pads about J / K, and leaves an utterance about 1 / 2J of its mates.
# J = sqrt(K) times this keeps both small where K is small: an hour of speech in 183 batches is moved by 5.4 of them,
# padded by 1.8 %, and changes 94 % of mates; by 8, it were 2.5 % and 96 %.
MAX_JITTER = 0.4

LESS_MEMORY = "Lower data.batch_seconds, data.max_seconds or data.max_cells, or set gradient_checkpointing=true"


@dataclass(frozen=True)
class BatchBounds:
    """What a batch may hold; one utterance alone may always be a batch.

    Args:
        batch_seconds: longest utterance times number of utterances, at most.
        max_utterances: number of utterances, at most.
        max_squared_seconds: square of the longest utterance times number of utterances, at most, as attention takes
            memory; None: no such bound.
        max_cells: numbers in the head's largest tensor, at most, as a transducer takes memory; None: no such bound.

    Raises:
        InputError: no batch is within them.
    """

    batch_seconds: Annotated[float, above(0)]
    max_utterances: Annotated[int, whole(1)]
    max_squared_seconds: Annotated[float | None, or_null(above(0))] = None
    max_cells: Annotated[float | None, or_null(above(0, 2**40))] = None

    def __post_init__(self) -> None:
        check(self, "data")

    def shared(self, views: int) -> "BatchBounds":
        """Return the bounds for utterances each of which is in its batch so many times."""
        if views == 1:
            return self
        squared = self.max_squared_seconds and self.max_squared_seconds / views
        cells = self.max_cells and self.max_cells / views
        return BatchBounds(self.batch_seconds / views, max(1, self.max_utterances // views), squared, cells)

    def longest_utterance(self) -> float:
        """Return the longest duration that a batch of one may have, in seconds."""
        if self.max_squared_seconds is None:
            return self.batch_seconds
        return min(self.batch_seconds, math.sqrt(self.max_squared_seconds))

    @overload
    def hold(self, longest: float, number: int, cells: float = 0) -> bool: ...

    @overload
    def hold(self, longest: Tensor, number: Tensor, cells: Tensor | float = 0) -> Tensor: ...

    def hold(self, longest: Any, number: Any, cells: Any = 0) -> Any:
        """Tell whether so many utterances, the longest of `longest` seconds and padded to `cells`, are within them."""
        fits = (longest * number <= self.batch_seconds) & (number <= self.max_utterances)
        if self.max_squared_seconds is not None:
            fits &= longest * longest * number <= self.max_squared_seconds
        if self.max_cells is not None:
            fits &= cells * number <= self.max_cells
        return fits

    def fill(self, durations: Tensor, cells: Tensor | float = 0) -> Tensor:
        """Tell what part of a batch each utterance fills among others of its size; 1: the whole."""
        parts = (durations / self.batch_seconds).clamp(min=1 / self.max_utterances)
        if self.max_squared_seconds is not None:
            parts = parts.maximum(durations * durations / self.max_squared_seconds)
        if self.max_cells is not None:
            parts = parts.maximum(torch.as_tensor(cells / self.max_cells, dtype=parts.dtype))
        return parts.clamp(max=1)


@dataclass(frozen=True)
class Texts:
    """What texts add to the size of a batch.

    Args:
        num_tokens: of each utterance, (N,) float64.
        cells: longest duration and most tokens of a batch to the numbers in the head's largest tensor for each
            utterance of it; tensors of the same shape.
    """

    num_tokens: Tensor
    cells: Callable[[Tensor, Tensor], Tensor]

    def of(self, indices: Tensor | slice) -> "Texts":
        """Those of some utterances, in this order."""
        return replace(self, num_tokens=self.num_tokens[indices])


@dataclass(frozen=True)
class BatchOrder:
    """In which order an epoch goes through its utterances.

    Args:
        jitter: batches by which an utterance's place among all, sorted by duration, moves up or down at most, so that
            its mates change; less where there are few batches (`MAX_JITTER`).
        sorted_epochs: how many epochs, from the first on, go from short utterances to long ones, of which CTC learns
            to read sooner (SortaGrad: Amodei et al. 2015, arXiv:1512.02595, section 3.2).

    Raises:
        InputError: one of them is negative.
    """

    jitter: Annotated[float, number(0)]
    sorted_epochs: Annotated[int, whole(0)]

    def __post_init__(self) -> None:
        check(self, "data")


@dataclass(frozen=True)
class Plan:
    """The batches of all ranks; `len()` is the number of steps, which is each rank's number of batches.

    Args:
        order: indices of the utterances, batch by batch, (N,).
        edges: where in `order` the batches begin, and where the last one ends, (steps * world_size + 1,).
        steps: which `world_size` neighbouring batches are each step's, a permutation, (steps,).
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
        """Return the longest duration (of (N,)) in each batch, (steps, world_size)."""
        longest = torch.segment_reduce(durations[self.order], "max", lengths=self.edges.diff())
        return longest.view(-1, self.world_size)[self.steps]

    def first_steps(self, number: int) -> Tensor:
        """Return the indices of the utterances that all ranks see in the first steps."""
        of_step = torch.empty_like(self.steps)
        of_step[self.steps] = torch.arange(len(self))
        step = of_step.repeat_interleave(self.edges[:: self.world_size].diff())
        return self.order[step < number]

    def labels(self) -> Tensor:
        """Return the number of the batch that each utterance is in, by its index, (N,)."""
        labels = torch.empty_like(self.order)
        labels[self.order] = torch.arange(len(self.edges) - 1).repeat_interleave(self.edges.diff())
        return labels


def cut_batches(durations: Tensor, bounds: BatchBounds, texts: Texts | None = None) -> Tensor:
    """Cut utterances, in the order given, into batches: each takes what it can hold before the next begins.

    An utterance that is too long for the bounds is a batch of its own.

    Args:
        durations: seconds, (N,).
        bounds: of each batch.
        texts: of the utterances; None: they add nothing.

    Returns:
        Where the batches begin, then N, (batches + 1,).
    """
    edges = [0]
    reach = 2 * min(bounds.max_utterances, len(durations))  # utterances after a block that its batches may hold
    while (first := edges[-1]) < len(durations):
        block = slice(first, first + BLOCK + reach)
        ends = _batch_ends(durations[block], bounds, texts and texts.of(block))[:BLOCK].tolist()
        while edges[-1] < min(first + BLOCK, len(durations)):
            edges.append(first + ends[edges[-1] - first])
    return torch.tensor(edges)


def _batch_ends(durations: Tensor, bounds: BatchBounds, texts: Texts | None) -> Tensor:
    """Tell where the batch ends that begins at each utterance, (N,) int64: for all of them at once, by doubling.

    Whether a batch may grow by 2**k utterances is seen from the longest of those, and every number is a sum of such.
    """
    lengths = durations[None] if texts is None else torch.stack([durations, texts.num_tokens])
    maxima = [lengths]  # maxima[k][:, i]: the longest of the 2**k from i on
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
    padded: Tensor | None = None,
) -> Plan:
    """Plan one epoch: every utterance once, in steps of `world_size` batches of similar length.

    Utterances are sorted by duration. Each one's place in that order, counted in batches, is moved at random, so that
    mates change from epoch to epoch, and they are sorted by it again and cut. Neighbouring batches go to the ranks
    side by side; the steps are shuffled, but in the first `order.sorted_epochs`: there the short ones come first.

    Args:
        durations: seconds, (N,) float64, with the epoch's speed factors in them.
        bounds: of each batch.
        order: of the utterances.
        seed: of the run.
        epoch: from 0.
        world_size: number of ranks.
        part: number of times that the epoch was planned anew for another number of ranks.
        texts: of the utterances; None: they add nothing to the size of a batch.
        padded: seconds to which each would be padded as the longest of its batch, (N,); None: its own.

    Raises:
        InputError: there are too few utterances, or batches that can be halved, for each rank to have one.
    """
    if len(durations) < world_size:
        raise InputError(f"each rank needs an utterance; got {len(durations)} utterances for {world_size} ranks.")
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, "plan", part))
    by_duration = _stable_argsort(durations)
    padded = durations if padded is None else padded
    if texts is None:
        places = in_blocks(lambda index: bounds.fill(padded[index]), by_duration)
    else:
        num_tokens, cells = texts.num_tokens, texts.cells
        places = in_blocks(
            lambda index: bounds.fill(padded[index], cells(padded[index], num_tokens[index])), by_duration
        )
    places.cumsum_(0)
    reach = min(order.jitter, MAX_JITTER * math.sqrt(float(places[-1])))
    moves = torch.rand(len(durations), generator=generator, dtype=torch.float64)
    places += moves.mul_(2).sub_(1).mul_(reach)
    del moves
    indices = by_duration[_stable_argsort(places)]
    del places, by_duration
    edges = _split_until_divisible(cut_batches(padded[indices], bounds, texts and texts.of(indices)), world_size)
    number = (len(edges) - 1) // world_size
    steps = torch.arange(number) if epoch < order.sorted_epochs else torch.randperm(number, generator=generator)
    return Plan(indices, edges, steps, world_size)


def _stable_argsort(values: Tensor) -> Tensor:
    """Return the order of values (N,): torch's argsort gives the same one, and makes a sorted copy besides."""
    return torch.from_numpy(np.argsort(values.numpy(), kind="stable"))


def _split_until_divisible(edges: Tensor, divisor: int) -> Tensor:
    """Halve the batches of most utterances until their number is a multiple of `divisor`; return the new edges."""
    lacking = -(len(edges) - 1) % divisor
    batches = list(zip((-edges.diff()).tolist(), edges.tolist(), strict=False)) if lacking else []
    heapq.heapify(batches)  # the fullest first, of those the first
    added = []
    for _ in range(lacking):
        negative, start = batches[0]
        if negative == -1:
            must = "batches must be as many as ranks, or some multiple, and hold an utterance each"
            raise InputError(f"{must}; got {len(batches)} batches of one utterance for {divisor} ranks.")
        half = -negative // 2
        heapq.heapreplace(batches, (-half, start))
        heapq.heappush(batches, (negative + half, start + half))
        added.append(start + half)
    return torch.cat([edges, torch.tensor(added, dtype=edges.dtype)]).sort().values


def changed_mates(before: Plan, after: Plan) -> float:
    """Tell which part of its batch-mates an utterance has lost from one plan to another, in the mean over utterances.

    Utterances that had no mates do not count; where none had any, it is 0.
    """
    labels, later = before.labels(), after.labels()
    mates = torch.bincount(labels)[labels] - 1
    pairs, inverse = torch.unique(labels * (int(later.max()) + 1) + later, return_inverse=True)
    kept = torch.bincount(inverse, minlength=len(pairs))[inverse] - 1
    had = mates > 0
    return float((1 - kept[had].double() / mates[had]).mean()) if bool(had.any()) else 0.0


def draw_factors(factors: Sequence[float], feasible: Tensor, *, seed: int, epoch: int) -> tuple[Tensor, int]:
    """Draw each utterance's speed factor for one epoch.

    Args:
        factors: K speeds to draw from.
        feasible: (N, K) bool: whether the tokens still fit the frames at that speed; else the utterance keeps 1.0.
        seed: of the run.
        epoch: from 0.

    Returns:
        Factors (N,) float64, and how many utterances kept 1.0 because what was drawn did not fit.
    """
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch, "speed"))
    drawn = torch.randint(len(factors), (len(feasible), 1), generator=generator)
    fits = feasible.gather(1, drawn)[:, 0]
    return torch.tensor(factors, dtype=torch.float64)[drawn[:, 0]].where(fits, torch.ones(())), int((~fits).sum())


class BatchSampler(Sampler[list[Item]]):
    """Hand the batches of an evaluation, as items, to a DataLoader: one pass, at speed 1.0."""

    def __init__(self, batches: Sequence[Sequence[int]]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Item]]:
        for batch in self.batches:
            yield [Item(0, position, 1.0) for position in batch]


def plan_evaluation(durations: Sequence[float], bounds: BatchBounds, *, rank: int, world_size: int) -> list[list[int]]:
    """Plan one rank's share of a pass that sees every utterance exactly once over all ranks, longest first.

    Longest first, so that what does not fit into memory fails at once.
    """
    seconds = torch.tensor(durations, dtype=torch.float64)
    order = torch.argsort(-seconds, stable=True)
    sizes = cut_batches(seconds[order], bounds).diff().tolist()
    batches = [batch.tolist() for batch in order.split(sizes)] if sizes else []
    batches += [[] for _ in range(world_size - len(batches))]  # a rank without a loader would not wait for the others
    return batches[rank::world_size]
