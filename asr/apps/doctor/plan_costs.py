"""The part of asr.plan's output about the reads of an epoch, the memory, and the time to the first step."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from asr.apps.doctor.reading import EpochReading
from asr.base.storage.settings import StorageSettings
from asr.base.storage.store import MERGE_GAP
from asr.base.text.numbers import counted, duration, percent
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.training_set import TrainingSet

PRICE = 0.0004  # US$ for 1,000 GET requests: the list price of S3 Standard in us-east-1, 2026
# training speed for which rates are printed, in seconds of audio per second; the rates are proportional to the speed
SPEED = 100
PREFETCHED = 2  # number of batches that a worker prefetches: torch's prefetch_factor


@dataclass(frozen=True)
class Load:
    """The requests of an epoch to stores, and the memory of the processes.

    Args:
        reading: requests to stores; None: all audio is in local files.
        plan: plan of the epoch.
        ranks: number of training processes.
        held_bytes: bytes of the training set's columns and of the plan in each process.
        index_bytes: bytes of memory-mapped indexes.
        peak_bytes: peak memory of the planning process.
        workers_bytes: maximum size of the prefetched batches in a rank's workers.
    """

    reading: EpochReading | None
    plan: EpochPlan
    ranks: int
    held_bytes: float
    index_bytes: float
    peak_bytes: float
    workers_bytes: float


def load_of(reading: EpochReading | None, training_set: TrainingSet, plan: EpochPlan, ranks: int, workers: int) -> Load:
    """Compute the `Load` of an epoch.

    Args:
        reading: requests of the epoch to stores; None: all audio is in local files.
        training_set: training set that the epoch is planned for.
        plan: plan of the epoch.
        ranks: number of training processes.
        workers: number of workers of each rank (data.num_workers).
    """
    from asr.base.system.processes import peak_memory

    features = training_set.features
    # bytes of features per second of audio
    second = features.sample_rate / features.hop * features.dim * 4 * training_set.reference.views
    batch = plan.summary().longest.padded_seconds * second
    held_bytes = training_set.num_bytes + plan.num_bytes
    index = sum(part.index.num_bytes for part in training_set.utterances.parts)
    return Load(reading, plan, ranks, held_bytes, index, peak_memory(), PREFETCHED * workers * batch)


def costs(load: Load, storage: StorageSettings) -> Iterator[str]:
    """Yield lines with the bytes and requests of an epoch, the cost of the requests, and the memory."""
    if load.reading is not None:
        yield from _reading(load, load.reading, storage)
    yield "memory of each training process"
    yield f"  columns and plan of an epoch: {megabytes(load.held_bytes)}"
    shared = "memory-mapped, shared by the processes of a machine"
    yield f"  index: {megabytes(load.index_bytes)}, {shared}"
    yield f"  prefetched batches in its workers: at most {megabytes(load.workers_bytes)}"
    yield f"  peak of this process: {megabytes(load.peak_bytes)}, with libraries, model and mapped pages"


def _reading(load: Load, reading: EpochReading, storage: StorageSettings) -> Iterator[str]:
    yield f"reading an epoch from {counted(reading.num_shards, 'shard')}"
    if reading.wanted_bytes:
        gaps = f"ranges up to {MERGE_GAP:,} bytes apart are one request"
        fetched = f"{megabytes(reading.fetched_bytes)} fetched, read amplification {reading.amplification:.3f}: {gaps}"
        yield f"  bytes: {megabytes(reading.wanted_bytes)} of audio, {fetched}"
    if reading.num_unsized:
        yield f"  separate files of unknown size: {counted(reading.num_unsized, 'utterance')}"
    part = f"estimated from {reading.num_planned:,} of {reading.num_batches:,} batches"
    rate = f"{reading.requests / reading.num_batches:.1f} per batch"
    rate = f"{rate}, {part}" if reading.num_planned < reading.num_batches else rate
    yield f"  requests to an object store: {reading.requests:,.0f}, {rate}"
    price = f"at {PRICE:g} US$ for 1,000 GET requests, the list price of S3 Standard, without traffic"
    yield f"  cost: {reading.requests * PRICE / 1000:,.4g} US$, {price}"
    seconds = float(load.plan.durations[load.plan.plan.order].sum())
    requests, fetched_bytes = (SPEED * value / seconds for value in (reading.requests, reading.fetched_bytes))
    rate = f"{requests:,.1f} requests and {megabytes(fetched_bytes)} per second"
    rates = f"{rate} for each process, {requests * load.ranks:,.0f} and {megabytes(fetched_bytes * load.ranks)} for all"
    yield f"  at {SPEED} s of audio per second and process: {rates}"
    if storage.cache_dir is not None and reading.fetched_bytes:
        share = min(1.0, storage.cache_gigabytes * 1e9 / reading.fetched_bytes)
        stored = f"stores {percent(share)} of the bytes, on a shared disk"
        yield f"  data.cache_gigabytes={storage.cache_gigabytes:g} {stored}"


def first_step(seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield lines with the expected time until the first step.

    Args:
        seconds: measured seconds of each part of the start-up, by the part's name.
    """
    parts = ", ".join(f"{name} {elapsed:.2f} s" for name, elapsed in seconds.items())
    more = "plus libraries, processes and the trial of the largest batch"
    yield f"time to the first step: {duration(sum(seconds.values()))} here, {more}"
    yield f"  {parts}"


def megabytes(number: float) -> str:
    """Format bytes in MB, GB or TB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number / 1e6:,.1f} MB"
