"""The queue of recordings, and the thread that recognises them.

Short recordings (at most one chunk) are recognised in the order of arrival, in the largest batches that the memory
bounds allow. A long recording passes through the network chunk by chunk; after each decoded segment, a batch of waiting
short recordings is recognised. A short recording therefore waits for at most one segment (two chunks) of a long
recording. A long recording continues after each batch, so short recordings cannot delay it for ever. Only one long
recording is processed at a time.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace

from asr.apps.serve.serving_thread import ServingThread
from asr.core.data.batch import Rejected
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.manifest import Utterance
from asr.core.recognition.inference import Inference
from asr.core.recognition.long_form import Segments
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.transcript import Transcript, Word
from asr.errors import AudioError
from asr.interfaces import NO_BIASING, Biasing

GATHER_SECONDS = 0.005  # time that a batch waits for more recordings

logger = logging.getLogger(__name__)


class QueueFullError(Exception):
    """The queue is full."""


class StoppedError(Exception):
    """The thread has ended or is ending, so it recognises no more recordings."""


class _GoneError(Exception):
    """The client that sent this recording has disconnected."""


@dataclass(eq=False)
class Job:
    """A recording to recognise.

    Args:
        utterance: the utterance with its audio; its id is unique among jobs.
        nbest: maximum number of alternatives in the transcript.
        biasing: hotwords of the recording.
        on_words: called in the jobs' thread with the words of each segment as soon as it is decoded.
        outcome: receives the transcript, an AudioError, StoppedError, or any other error.
    """

    utterance: Utterance
    nbest: int = 1
    biasing: Biasing = NO_BIASING
    on_words: Callable[[Sequence[Word]], object] = lambda words: None
    outcome: "Future[Transcript]" = field(default_factory=Future)
    gone: bool = False


class Jobs(ServingThread):
    """The queue and its thread.

    Args:
        recognizer: the recogniser, which only this thread uses.
        options: inference options; `batches` bounds the recordings that are recognised together.
        queue: maximum number of waiting recordings.
        num_threads: number of threads for the network's computations; None: torch's default.
        on_batch: called with the number of recordings in each batch.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        options: Inference,
        *,
        queue: int,
        num_threads: int | None = None,
        on_batch: Callable[[int], object] = lambda number: None,
    ) -> None:
        super().__init__("net", num_threads)
        self._recognizer = recognizer
        self._options = options
        chunk_seconds = options.chunks.chunk_seconds
        self._long_options = replace(options, batches=BatchBounds(batch_seconds=chunk_seconds, max_utterances=1))
        self._queue = queue
        self._on_batch = on_batch
        self._short: deque[Job] = deque()
        self._long: deque[Job] = deque()
        self._taken: set[Job] = set()

    @property
    def waiting(self) -> int:
        """Number of waiting recordings."""
        return len(self._short) + len(self._long)

    @property
    def full(self) -> bool:
        """Whether the queue is full."""
        return self.waiting >= self._queue

    def submit(self, job: Job) -> None:
        """Put a recording into the queue.

        Raises:
            QueueFullError: the queue is full.
            StoppedError: the thread has ended.
        """
        with self._changed:
            if not self.alive:
                raise StoppedError
            if self.full:
                raise QueueFullError
            (self._long if self._is_long(job) else self._short).append(job)
            self._changed.notify()

    def withdraw(self, job: Job) -> bool:
        """Cancel a job whose client has disconnected; return True if its recognition had not begun."""
        with self._changed:
            job.gone = True
            for queue in (self._short, self._long):
                if job in queue:
                    queue.remove(job)
                    return True
            return False

    def stop(self) -> None:
        """Accept no more jobs, and end all queued and running jobs with StoppedError."""
        with self._changed:
            self._stopped = True
            for job in (*self._short, *self._long, *self._taken):
                _settle(job, StoppedError())
            self._short.clear()
            self._long.clear()
            self._changed.notify()

    # ---- methods that run in the thread

    def _turn(self) -> bool:
        """Recognise a batch of short recordings, then a long one; return False when stopped."""
        if not self._wait():
            return False
        self._short_ones()
        self._long_one()
        return True

    def _wait(self) -> bool:
        """Wait for jobs, then GATHER_SECONDS for further jobs of the same batch; return False when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self.waiting or self._stopped)
            max_utterances = self._options.batches.max_utterances
            if not self._long and len(self._short) < max_utterances:
                self._changed.wait_for(lambda: len(self._short) >= max_utterances or self._stopped, GATHER_SECONDS)
            return not self._stopped

    def _short_ones(self) -> None:
        """Recognise a batch of waiting short recordings, if there are any."""
        jobs = self._take_batch()
        if jobs:
            self._on_batch(len(jobs))
            self._recognize(jobs, self._options)

    def _take_batch(self) -> list[Job]:
        """Take the first short jobs that fit into a batch; a batch is padded to its longest recording."""
        bounds = self._options.batches
        taken: list[Job] = []
        longest = 0.0
        with self._changed:
            while self._short:
                longest = max(longest, self._short[0].utterance.duration)
                if taken and not bounds.hold(longest, len(taken) + 1):
                    break
                taken.append(self._short.popleft())
            self._taken.update(taken)
        return taken

    def _long_one(self) -> None:
        with self._changed:
            if not self._long:
                return
            job = self._long.popleft()
            self._taken.add(job)
        self._on_batch(1)
        self._recognize([job], self._long_options)

    def _recognize(self, jobs: Sequence[Job], options: Inference) -> None:
        """Recognise jobs together; if this fails, recognise each job alone, so that only faulty jobs fail."""
        try:
            self._recognize_together(jobs, options)
        except Exception as error:  # a fault of the program, or too little memory
            logger.exception("a batch of %d recordings failed", len(jobs))
            if len(jobs) == 1:
                _settle(jobs[0], error)
        if len(jobs) > 1:
            for job in jobs:
                if not job.outcome.done():
                    self._recognize([job], options)
        with self._changed:
            self._taken.difference_update(jobs)

    def _recognize_together(self, jobs: Sequence[Job], options: Inference) -> None:
        by_id = {job.utterance.id: job for job in jobs if not (job.gone or self._stopped)}
        for job in jobs:
            if job.utterance.id not in by_id:
                _settle(job, _GoneError())
        if not by_id:
            return
        utterances = [job.utterance for job in by_id.values()]
        if self._is_long(jobs[0]):
            [encoded] = self._recognizer.segments(utterances, options)
            assert not isinstance(encoded, Rejected), "a long recording is read while it is recognised"
            self._decode(jobs[0], encoded[1])
            return
        nbest = max(job.nbest for job in jobs)
        of_jobs = replace(options, nbest=nbest, biasing_of=lambda utterance: by_id[utterance.id].biasing)
        for result in self._recognizer.recognize(utterances, of_jobs):
            if isinstance(result, Rejected):
                _settle(by_id[result.utterance.id], AudioError(result.reason))
                continue
            utterance, transcript = result
            job = by_id[utterance.id]
            job.on_words(transcript.words)
            _settle(job, replace(transcript, alternatives=transcript.alternatives[: job.nbest]))

    def _decode(self, job: Job, segments: Segments) -> None:
        try:
            pieces = self._with_breaks(job, segments)
            transcript = self._recognizer.transcript(
                job.utterance.duration, pieces, job.nbest, on_words=job.on_words, biasing=job.biasing
            )
            _settle(job, transcript)
        except (AudioError, _GoneError) as error:  # a long recording is read during recognition
            _settle(job, error)

    def _with_breaks(self, job: Job, segments: Segments) -> Segments:
        """Yield the segments of a long recording; after each, recognise a batch of short recordings."""
        for segment in segments:
            if job.gone or self._stopped:
                raise _GoneError
            yield segment
            self._short_ones()

    def _is_long(self, job: Job) -> bool:
        """Return whether a recording has several segments."""
        limit = self._recognizer.decode.max_seconds or math.inf
        return job.utterance.duration > min(self._options.chunks.chunk_seconds, limit)


def _settle(job: Job, outcome: Transcript | Exception) -> None:
    """Set the outcome of a job that has no outcome; another thread may set an outcome at the same time."""
    with suppress(InvalidStateError):
        if isinstance(outcome, Exception):
            # The traceback refers to the job and the open recording; this cycle would keep the file open.
            job.outcome.set_exception(outcome.with_traceback(None))
        else:
            job.outcome.set_result(outcome)
