"""Estimates of the bytes that an epoch reads from shards, and of its requests to object stores."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asr.base.storage.location import ByteRange, is_url
from asr.base.storage.store import planned_requests
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.manifest import Utterance
from asr.core.data.utterances import Utterances

MAX_BATCHES = 1_000  # maximum number of batches whose requests are planned; the estimate is scaled to all batches


@dataclass(frozen=True)
class EpochReading:
    """The reads of all processes in an epoch.

    Args:
        num_batches: number of batches of all processes.
        num_planned: number of batches whose requests were planned.
        num_shards: number of shards that contain the utterances.
        wanted_bytes: bytes of the audio in shards.
        amplification: fetched bytes per wanted byte. Small gaps between neighbouring utterances are also fetched, and
            an utterance that occurs twice in a batch is fetched once.
        requests: number of requests to object stores, under the assumption that all shards are in a store; each audio
            file at a URL takes one request.
        num_unsized: number of occurrences of utterances in separate files, whose sizes an index does not contain.
    """

    num_batches: int
    num_planned: int
    num_shards: int
    wanted_bytes: int
    amplification: float
    requests: float
    num_unsized: int

    @property
    def fetched_bytes(self) -> float:
        """Number of bytes fetched from shards."""
        return self.wanted_bytes * self.amplification


def epoch_reading(plan: EpochPlan, utterances: Utterances) -> EpochReading | None:
    """Estimate the requests of an epoch; return None if all of its audio is in local files."""
    sizes = utterances.num_bytes[plan.occurrences.rows.numpy()]  # NaN for an utterance in a separate file
    is_sized = np.isfinite(sizes)
    steps, ranks = plan.plan.sizes().shape
    numbers = [number * steps * ranks // MAX_BATCHES for number in range(MAX_BATCHES)]
    numbers = sorted(set(numbers)) if steps * ranks > MAX_BATCHES else list(range(steps * ranks))
    wanted = fetched = requests = 0
    for number in numbers:
        batch = [utterances[item.row] for item in plan.items(number // ranks, number % ranks)]
        ranges = extents(batch)
        planned = planned_requests(ranges)
        wanted += sum(each.num_bytes for each in ranges)
        fetched += sum(request.stop - request.start for request in planned)
        requests += len(planned) + len({each.audio_filepath for each in batch if _is_file_at_url(each)})
    num_shards = sum(len(part.index.shards) for part in utterances.parts)
    if not num_shards and not requests:
        return None
    return EpochReading(
        num_batches=steps * ranks,
        num_planned=len(numbers),
        num_shards=num_shards,
        wanted_bytes=int(sizes[is_sized].sum()),
        amplification=fetched / wanted if wanted else math.nan,
        requests=requests * steps * ranks / len(numbers),
        num_unsized=int((~is_sized).sum()),
    )


def extents(utterances: Sequence[Utterance]) -> list[ByteRange]:
    """Return the byte ranges of the utterances in shards."""
    return [ByteRange(each.audio_filepath, *each.extent) for each in utterances if each.extent is not None]


def _is_file_at_url(utterance: Utterance) -> bool:
    return utterance.extent is None and is_url(utterance.audio_filepath)
