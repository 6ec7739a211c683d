"""The engine that transcribes parts on a Ray cluster: the only file that knows Ray.

Ray only runs tasks, each a part or a piece of one. Which parts are done is decided by the job's folder, to which the
driver alone writes. The driver also counts attempts: Ray repeats nothing. A part whose process ends again and again is
searched for the utterance that ends it, by bisection; the rest is then transcribed without it, in one go.
"""

import os
import socket
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from asr.bulk.parts import PartTask
from asr.bulk.transcription import PartResult, transcribe_part
from asr.data.manifest import Utterance
from asr.errors import InputError, StoreError, how_to_install, is_out_of_memory, one_line
from asr.recognition.inference import Inference
from asr.recognition.recognizer import Recognizer
from asr.system.processes import spin_briefly

MAX_DEATHS = 3  # of processes that transcribe a part, before it is searched for the utterance that ends them
MAX_DEATHS_ALONE = 2  # of processes that transcribe one utterance, before it is a failure
MAX_SEARCHES = 2  # of a part, that find no such utterance, before the job ends
WAIT_SECONDS = 10.0  # for a task to end, before the cluster's size is looked at again
QUEUED = 2  # tasks that are submitted for each worker: the next is there when one ends
ENDS_PROCESS = "it ends the process that recognises it"

Load = Callable[[], Recognizer]


@dataclass(frozen=True)
class Worker:
    """What a worker process needs beside its task.

    Args:
        key: of the model and how it is loaded: a process that has it loads it only once.
        load: the recogniser.
        inference: as for `Recognizer.recognize`.
        with_segments: whether to write segments.
    """

    key: str
    load: Load
    inference: Inference
    with_segments: bool


@dataclass(frozen=True)
class Outcome:
    """How a task ended, if not with the death of its process.

    Args:
        result: of a part; None: of a search, or there was an error.
        error: in one line, of `kind`.
        kind: "", "store", "input", "memory" or "fault".
    """

    result: PartResult | None = None
    error: str = ""
    kind: str = ""


@dataclass
class _Part:
    """A part and what has happened to it.

    Args:
        task: with the utterances that are excluded so far.
        deaths: of its processes since it was last searched.
        searches: that found nothing.
        suspects: lists of utterances that are to be tried; the last is being tried.
        deaths_alone: of processes that had the last list, of one utterance.
        num_found: utterances that the present search has excluded.
    """

    task: PartTask
    deaths: int = 0
    searches: int = 0
    suspects: list[list[Utterance]] = field(default_factory=list)
    deaths_alone: int = 0
    num_found: int = 0

    @property
    def next_task(self) -> PartTask:
        """What is to be run next: the part, or the suspects to be tried."""
        return replace(self.task, utterances=self.suspects[-1]) if self.suspects else self.task

    def died(self, reason: str) -> None:
        """Note that the process of the last task has ended.

        Raises:
            InputError: no utterance alone is the reason.
        """
        if self.suspects:
            self._suspects_died(reason)
            return
        self.deaths += 1
        if self.deaths < MAX_DEATHS:
            return
        if self.searches == MAX_SEARCHES:
            must = f"memory must suffice for part {self.task.number}; its process ended {MAX_DEATHS} times again"
            raise InputError(f"{must}, and with none of its utterances alone ({reason}). Lower --batch-seconds.")
        waiting = [each for each in self.task.utterances if each.id not in self.task.excluded]
        self.suspects, self.num_found = _halves(waiting), 0

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
        """Go on to the next suspects, or back to the whole part."""
        self.suspects.pop()
        self.deaths_alone = 0
        if not self.suspects:
            self.deaths = 0
            self.searches += not self.num_found


def _halves(utterances: Sequence[Utterance]) -> list[list[Utterance]]:
    half = len(utterances) // 2
    return [list(each) for each in (utterances[half:], utterances[:half]) if each]


def transcribe_on_ray(
    tasks: Iterable[PartTask], worker: Worker, address: str | None, device: str
) -> Iterator[PartResult]:
    """Yield the parts' results as they come.

    Args:
        tasks: the parts.
        worker: what a worker process needs.
        address: of the cluster, or "auto"; None: a cluster of this machine is started.
        device: as the option is called: with cpu a worker has a core, else a GPU if the cluster has any.

    Raises:
        InputError: there is no such cluster, or a worker cannot load the model.
        StoreError: a store failed.
    """
    ray = _connected(address)
    try:
        yield from _run(ray, tasks, worker, device)
    except ray.exceptions.RayError as error:
        must = "the Ray cluster must stay; start the same command again to resume"
        raise InputError(f"{must}. {one_line(error)}") from None
    finally:
        ray.shutdown()


def _connected(address: str | None) -> Any:
    """Import Ray and connect to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    try:
        import ray
    except ImportError:
        must = "--engine ray needs the package ray"
        raise InputError(f"{must}; it is not installed. {how_to_install('ray')}") from None
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(**options, **({"include_dashboard": False} if address is None else {"address": address}))
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InputError(f"--address must be that of a Ray cluster; got {address}: {one_line(error)}") from None
    return ray


def _run(ray: Any, tasks: Iterable[PartTask], worker: Worker, device: str) -> Iterator[PartResult]:
    remote: dict[str, Any] = {}
    waiting = iter(tasks)
    again: list[_Part] = []
    running: dict[Any, _Part] = {}
    handed = ray.put(worker)
    while True:
        slots, resources = _slots(ray, device)
        key = repr(resources)
        if key not in remote:  # max_calls: a GPU's worker would end after each task, and load the model each time
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
    """Return how many workers the cluster has room for, and what each takes."""
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
    except ray.exceptions.RayError as error:  # the process, or its machine, has gone
        part.died(type(error).__name__)
        return None
    if outcome.kind == "store":
        raise StoreError(outcome.error)
    if outcome.kind == "input":
        raise InputError(outcome.error)
    if outcome.kind == "fault" and not part.suspects:  # a search looks for utterances that end their process
        raise RuntimeError(outcome.error)
    if outcome.kind == "memory":
        part.died(outcome.error)
    elif part.suspects:
        part.tried()
    return outcome.result


_recognizers: dict[str, Recognizer] = {}  # of this process, by key: at most one


def work(task: PartTask, is_search: bool, worker: Worker) -> Outcome:
    """Transcribe a part in a worker process; of a search nothing is returned."""
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
