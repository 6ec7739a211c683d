"""The engine that transcribes parts on a Ray cluster; the only file that uses Ray.

Ray only runs tasks; a task is a part or a piece of a part. The job's folder determines which parts are done, and only
the driver writes to the folder. The driver also counts attempts, and Ray never repeats a task. If the process of a part
crashes repeatedly, the driver searches by bisection for the utterance that causes the crashes, then submits the part
without this utterance.
"""

import os
import re
import socket
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asr.apps.bulk.parts import PartTask
from asr.apps.bulk.transcription import PartResult, transcribe_part
from asr.base.system.processes import spin_briefly
from asr.core.data.manifest import Utterance
from asr.core.recognition.inference import Inference
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError, StoreError, how_to_install, is_out_of_memory, one_line, reason_of

MAX_DEATHS = 3  # after this number of crashes in a part, a search for the utterance that causes them begins
MAX_DEATHS_ALONE = 2  # an utterance counts as a failure after this number of crashes when it is transcribed alone
MAX_SEARCHES = 2  # after this number of unsuccessful searches in a part, MAX_DEATHS more crashes end the job
WAIT_SECONDS = 10.0  # maximum wait for the end of a task before the cluster's size is checked again
REACH_SECONDS = 10.0  # timeout for a connection to the head of the cluster
QUEUED = 2  # tasks submitted per worker, so that a worker starts the next task without delay
ENDS_PROCESS = "its recognition crashes the process"

Load = Callable[[], Recognizer]


@dataclass(frozen=True)
class Worker:
    """Data that a worker process needs in addition to its task.

    Args:
        key: identifies the model and its options; a process loads each key only once.
        load: returns the recogniser.
        inference: as for `Recognizer.recognize`.
        with_segments: whether to write segments.
    """

    key: str
    load: Load
    inference: Inference
    with_segments: bool


@dataclass(frozen=True)
class Outcome:
    """Result or error of a task whose process has not crashed.

    Args:
        result: result of a part; None after an error, and in a search for an utterance that crashes the process.
        error: message of the error; "" without an error.
        kind: kind of the error: "store", "input", "memory", "fault"; "" without an error.
    """

    result: PartResult | None = None
    error: str = ""
    kind: str = ""


@dataclass
class _Part:
    """A part, and the history of its attempts.

    Args:
        task: the part, with the utterances excluded so far.
        deaths: number of crashes of the part's processes since the last search.
        searches: number of searches that have not found a crashing utterance.
        suspects: during a search for crashing utterances, the lists of utterances that may contain one and must still
            be tried; the last list is being tried.
        deaths_alone: number of crashes with the last list in `suspects`, if this list has one utterance.
        num_found: number of utterances excluded by the current search.
    """

    task: PartTask
    deaths: int = 0
    searches: int = 0
    suspects: list[list[Utterance]] = field(default_factory=list)
    deaths_alone: int = 0
    num_found: int = 0

    @property
    def next_task(self) -> PartTask:
        """The next task: the whole part, or, during a search for crashing utterances, the last list in `suspects`."""
        return replace(self.task, utterances=self.suspects[-1]) if self.suspects else self.task

    def died(self, reason: str) -> None:
        """Record that the process of the last task has crashed."""
        if self.suspects:
            self._suspects_died(reason)
            return
        self.deaths += 1
        if self.deaths < MAX_DEATHS:
            return
        if self.searches == MAX_SEARCHES:
            must = f"memory must suffice for part {self.task.number}; it crashed {MAX_DEATHS} times ({reason})"
            raise InputError(f"{must}, but no single utterance is the cause. Lower --batch-seconds.")
        remaining = [utterance for utterance in self.task.utterances if utterance.id not in self.task.excluded]
        self.suspects, self.num_found = _halves(remaining), 0

    def _suspects_died(self, reason: str) -> None:
        suspects = self.suspects[-1]
        if len(suspects) > 1:
            self.suspects[-1:] = _halves(suspects)
            return
        self.deaths_alone += 1
        if self.deaths_alone == MAX_DEATHS_ALONE:
            self.task.excluded[suspects[0].id] = f"{ENDS_PROCESS}: {reason}"
            self.num_found += 1
            self.tried()

    def tried(self) -> None:
        """Remove the list that was tried; continue with the next list in `suspects`, or with the whole part."""
        self.suspects.pop()
        self.deaths_alone = 0
        if not self.suspects:
            self.deaths = 0
            self.searches += not self.num_found


def _halves(utterances: Sequence[Utterance]) -> list[list[Utterance]]:
    half = len(utterances) // 2
    return [list(part) for part in (utterances[half:], utterances[:half]) if part]


def transcribe_on_ray(
    tasks: Iterable[PartTask], worker: Worker, address: str | None, device: str
) -> Iterator[PartResult]:
    """Yield the results of parts in the order of completion.

    Args:
        tasks: the parts.
        worker: data for the worker processes.
        address: address of the cluster, or "auto"; None: start a cluster on this machine.
        device: value of --device. With cpu, each worker uses a core; otherwise, a GPU if the cluster has GPUs.

    Raises:
        InputError: the cluster cannot be reached, or a worker cannot load the model.
        StoreError: a store failed.
    """
    ray = _connected(address)
    try:
        yield from _run(ray, tasks, worker, device)
    except ray.exceptions.RayError as error:
        must = "the Ray cluster must keep running; start the same command again to resume"
        raise InputError(f"{must}. {reason_of(error)}.") from None
    finally:
        ray.shutdown()


def _connected(address: str | None) -> Any:
    """Import Ray and connect to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # set before the import of Ray, which reads it
    try:
        import ray
    except ImportError:
        must = "--engine ray needs the package ray"
        raise InputError(f"{must}; it is not installed. {how_to_install('ray')}") from None
    _check_reachable(address or "")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(**options, **({"include_dashboard": False} if address is None else {"address": address}))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(
            f"--address must be the address of a Ray cluster; got {address}: {reason_of(error)}."
        ) from None
    return ray


def _check_reachable(address: str) -> None:
    """Check that the port of an address accepts connections, because ray.init retries refused ones for minutes."""
    match = re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d{1,5})", address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--address must be the address of a running Ray cluster; got {address}: {reason_of(error)}. "
            "`ray status` on a machine of the cluster shows whether it is running."
        ) from None


def _run(ray: Any, tasks: Iterable[PartTask], worker: Worker, device: str) -> Iterator[PartResult]:
    remote: dict[str, Any] = {}
    waiting = iter(tasks)
    again: list[_Part] = []
    running: dict[Any, _Part] = {}
    handed = ray.put(worker)
    while True:
        slots, resources = _slots(ray, device)
        key = repr(resources)
        if key not in remote:  # max_calls=0: GPU workers survive their tasks, so they load the model only once
            remote[key] = ray.remote(max_calls=0, max_retries=0, **resources)(work)
        while len(running) < QUEUED * slots:
            part = again.pop() if again else next((_Part(task) for task in waiting), None)
            if part is None:
                break
            running[remote[key].remote(part.next_task, bool(part.suspects), handed)] = part
        if not running and slots:
            return
        ended, _ = ray.wait(list(running), num_returns=1, timeout=WAIT_SECONDS) if running else ([], [])
        for reference in ended:
            part = running.pop(reference)
            result = _ended(ray, reference, part)
            if result is None:
                again.append(part)
            else:
                yield result


def _slots(ray: Any, device: str) -> tuple[int, dict[str, float]]:
    """Return the number of workers that fit into the cluster, and the resources of each."""
    resources = ray.cluster_resources()
    if device != "cpu" and resources.get("GPU", 0) >= 1:
        return int(resources["GPU"]), {"num_cpus": 0, "num_gpus": 1}
    return int(resources.get("CPU", 0)), {"num_cpus": 1, "num_gpus": 0}


def _ended(ray: Any, reference: Any, part: _Part) -> PartResult | None:
    """Return the result of a task that has ended; None: the part is not done yet."""
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:  # the process or its machine has died
        part.died(type(error).__name__)
        return None
    if outcome.kind == "store":
        raise StoreError(outcome.error)
    if outcome.kind == "input":
        raise InputError(outcome.error)
    if outcome.kind == "fault" and not part.suspects:  # a search for crashing utterances ignores other errors
        raise RuntimeError(outcome.error)
    if outcome.kind == "memory":
        part.died(outcome.error)
    elif part.suspects:
        part.tried()
    return outcome.result


_recognizers: dict[str, Recognizer] = {}  # recognisers of this process, by key; at most one entry


def work(task: PartTask, is_search: bool, worker: Worker) -> Outcome:
    """Transcribe a task in a worker process; if `is_search`, only test whether its utterances crash the process."""
    try:
        if worker.key not in _recognizers:
            spin_briefly()
            _recognizers.clear()
            _recognizers[worker.key] = worker.load()
        transcribe = partial(transcribe_part, _recognizers[worker.key], task, worker.inference)
        result = transcribe(worker.with_segments and not is_search)
        return Outcome() if is_search else Outcome(result)
    except StoreError as error:
        return Outcome(error=str(error), kind="store")
    except InputError as error:
        return Outcome(error=f"{socket.gethostname()}: {error}", kind="input")
    except Exception as error:
        if is_out_of_memory(error):
            return Outcome(error=one_line(f"{type(error).__name__} {error}"), kind="memory")
        return Outcome(error=traceback.format_exc(), kind="fault")
