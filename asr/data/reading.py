"""What an epoch reads of shards and URLs: bytes, and the requests that an object store gets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asr.data.epoch_plan import EpochPlan
from asr.data.manifest import Utterance
from asr.data.utterances import Utterances
from asr.storage.byte_range import ByteRange
from asr.storage.location import is_url
from asr.storage.store import planned_requests

MAX_BATCHES = 1_000  # whose requests are planned; the others are taken to be like them


@dataclass(frozen=True)
class EpochReading:
    """What all processes read in an epoch.

    Args:
        num_batches: of all processes.
        num_planned: batches whose requests were planned.
        num_shards: that hold the utterances.
        wanted_bytes: of the audio in shards.
        amplification: bytes fetched for a byte wanted: a gap between two neighbours is fetched with them, and an
            utterance that is twice in a batch once.
        requests: to object stores, as if each shard were in one; of the audio files at URLs one each.
        num_unsized: occurrences of utterances that are files of their own, whose bytes no index tells.
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
        """Bytes that come from the shards."""
        return self.wanted_bytes * self.amplification


def epoch_reading(plan: EpochPlan, utterances: Utterances) -> EpochReading | None:
    """Plan the requests of an epoch; None: all of its audio is in files of this machine.

    Args:
        plan: of the epoch, whole.
        utterances: of the training set.
    """
    sizes = utterances.num_bytes[plan.occurrences.positions.numpy()]  # NaN: a file of its own
    is_sized = np.isfinite(sizes)
    steps, ranks = plan.plan.sizes().shape
    places = [place * steps * ranks // MAX_BATCHES for place in range(MAX_BATCHES)]
    places = sorted(set(places)) if steps * ranks > MAX_BATCHES else list(range(steps * ranks))
    wanted = fetched = requests = 0
    for place in places:
        batch = [utterances[item.position] for item in plan.items(place // ranks, place % ranks)]
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
        num_planned=len(places),
        num_shards=num_shards,
        wanted_bytes=int(sizes[is_sized].sum()),
        amplification=fetched / wanted if wanted else math.nan,
        requests=requests * steps * ranks / len(places),
        num_unsized=int((~is_sized).sum()),
    )


def extents(utterances: Sequence[Utterance]) -> list[ByteRange]:
    """Return where the audio of those utterances is that are in shards."""
    return [ByteRange(each.audio_filepath, *each.extent) for each in utterances if each.extent is not None]


def _is_file_at_url(utterance: Utterance) -> bool:
    return utterance.extent is None and is_url(utterance.audio_filepath)
