"""debug=profile: what a few optimizer steps spend their time on, by operation and by part of the net."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.profilers.pytorch import RegisterRecordFunction
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile, schedule

from asr.run.names import TRACE

logger = logging.getLogger(__name__)

WARM_UP = 3  # batches before those that are recorded: the first ones allocate and compile
ROWS = 20  # of a table
NAME_WIDTH = 60
PART = "[pl][module]"  # what the name of a part begins with


class Profile(pl.Callback):
    """Record batches by torch's profiler; the table goes to the log, the trace to a file.

    Lightning's own profiler keeps its table to itself until the run ends, and its schedule counts the batches of an
    epoch; its names of the net's parts are taken.

    Args:
        run_dir: gets the trace.
        num_batches: that are recorded, validation left out.
    """

    def __init__(self, run_dir: Path, num_batches: int) -> None:
        self._trace = run_dir / TRACE
        self._num_batches = num_batches
        self._profile: profile | None = None
        self._names: RegisterRecordFunction | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        if not trainer.is_global_zero:
            return
        if pl_module.device.type != "cuda":  # else it reports, as an error, that it found no GPU
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (pl_module.device.type == "cuda")
        steps = schedule(wait=WARM_UP - 1, warmup=1, active=self._num_batches, repeat=1)
        self._names = RegisterRecordFunction(pl_module)
        self._profile = profile(activities=activities, schedule=steps, on_trace_ready=self._tell, acc_events=True)
        self._names.__enter__()
        self._profile.start()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        """Lightning's hook."""
        if self._profile is not None:
            self._profile.step()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Lightning's hook."""
        if self._profile is not None and self._names is not None:
            self._profile.stop()
            self._names.__exit__(None, None, None)

    def _tell(self, recorded: profile) -> None:
        averages = recorded.key_averages()
        on_device = ProfilerActivity.CUDA in recorded.activities
        logger.info("profile of %d batches behind %d others", self._num_batches, WARM_UP)
        for line in [*_parts(averages, on_device), *_operations(averages, on_device)]:
            logger.info("%s", line)
        recorded.export_chrome_trace(str(self._trace))
        logger.info("trace written to %s: open it at https://ui.perfetto.dev", self._trace)


def _parts(averages: EventList, on_device: bool) -> Iterator[str]:
    """Say of each part of the net how long its forward pass took, the slowest first."""
    seconds = {event.key: event.device_time_total if on_device else event.cpu_time_total for event in averages}
    parts = {key.removeprefix(PART): time for key, time in seconds.items() if key.startswith(PART)}
    yield f"forward pass of each part of the net, with its own parts, ms{' on the GPU' if on_device else ''}:"
    for name, time in sorted(parts.items(), key=lambda item: -item[1])[:ROWS]:
        yield f"{time / 1e3:10.1f}  {name}"


def _operations(averages: EventList, on_device: bool) -> list[str]:
    by = "self_device_time_total" if on_device else "self_cpu_time_total"
    named = EventList([event for event in averages if not event.key.startswith(PART)])
    return str(named.table(sort_by=by, row_limit=ROWS, max_name_column_width=NAME_WIDTH)).splitlines()
