"""The callback of debug=profile: the time of a few optimizer steps, by operation and by part of the model."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import lightning.pytorch as pl
from lightning.pytorch.profilers.pytorch import RegisterRecordFunction
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity, profile, schedule

from asr.base.system.files import write_whole_text
from asr.core.run.names import PROFILE, TRACE

logger = logging.getLogger(__name__)

WARM_UP = 3  # number of batches at the start that are not recorded, because they allocate memory and compile
ROWS = 20  # number of rows of each table
NAME_WIDTH = 60
PART = "[pl][module]"  # prefix of the names of the model's parts


class Profile(pl.Callback):
    """Record batches with torch's profiler; write two tables, to the log and to a file, and a trace.

    Lightning's own profiler prints its table only when the run ends, and its schedule counts batches within an epoch.
    From Lightning's profiler, this class takes only the names of the model's parts in the trace.

    Args:
        run_dir: folder of the tables and the trace.
        num_batches: number of training batches to record.
    """

    def __init__(self, run_dir: Path, num_batches: int) -> None:
        self._run_dir = run_dir
        self._num_batches = num_batches
        self._profile: profile | None = None
        self._names: RegisterRecordFunction | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the profiler, on the first process."""
        if not trainer.is_global_zero:
            return
        if pl_module.device.type != "cuda":  # otherwise torch logs an error about the absent GPU
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (pl_module.device.type == "cuda")
        steps = schedule(wait=WARM_UP - 1, warmup=1, active=self._num_batches, repeat=1)
        self._names = RegisterRecordFunction(pl_module)
        self._profile = profile(activities=activities, schedule=steps, on_trace_ready=self._write, acc_events=True)
        self._names.__enter__()
        self._profile.start()

    def on_train_batch_end(self, trainer: pl.Trainer, *_: object) -> None:
        """Advance the profiler's schedule."""
        if self._profile is not None:
            self._profile.step()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the profiler."""
        if self._profile is not None and self._names is not None:
            self._profile.stop()
            self._names.__exit__(None, None, None)

    def _write(self, recorded: profile) -> None:
        averages = recorded.key_averages()
        on_device = ProfilerActivity.CUDA in recorded.activities
        trace = self._run_dir / TRACE
        recorded.export_chrome_trace(str(trace))
        lines = [
            f"profile of {self._num_batches} batches after {WARM_UP} warm-up batches",
            *_parts(averages, on_device),
            *_operations(averages, on_device),
            f"trace written to {trace}: open it at https://ui.perfetto.dev",
        ]
        for line in lines:
            logger.info("%s", line)
        write_whole_text(self._run_dir / PROFILE, "\n".join(lines) + "\n")


def _parts(averages: EventList, on_device: bool) -> Iterator[str]:
    """Yield the lines of a table with the forward time of each part of the model; the slowest part comes first."""
    seconds = {event.key: event.device_time_total if on_device else event.cpu_time_total for event in averages}
    parts = {key.removeprefix(PART): time for key, time in seconds.items() if key.startswith(PART)}
    yield f"forward pass of each part of the model, sub-parts included, ms{' on the GPU' if on_device else ''}:"
    for name, time in sorted(parts.items(), key=lambda item: -item[1])[:ROWS]:
        yield f"{time / 1e3:10.1f}  {name}"


def _operations(averages: EventList, on_device: bool) -> list[str]:
    by = "self_device_time_total" if on_device else "self_cpu_time_total"
    named = EventList([event for event in averages if not event.key.startswith(PART)])
    return str(named.table(sort_by=by, row_limit=ROWS, max_name_column_width=NAME_WIDTH)).splitlines()
