"""Speech that comes while it is spoken, and the one thread that hears it: all whose next chunk is complete, at once.

A turn takes from each stream what completes its next chunk, and no more, so that who sends ahead gets no more of the
net than who speaks. What a stream says does not depend on who is heard with it. The thread is not that of recordings,
for whose batches captions would wait: a net holds nothing between calls, so both may ask it.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import NamedTuple

import torch

from asr.audio.resampling import Resampler
from asr.recognition.captions import Captions
from asr.recognition.recognizer import Recognizer
from asr.recognition.stream_settings import DEFAULT, StreamSettings
from asr.recognition.streaming import Stream
from asr.server.jobs import StoppedError

SAMPLE_BYTES = 2
NO_CHUNK_SECONDS = 0.64  # for a model that says of no chunk what it is best heard in

logger = logging.getLogger(__name__)


class Heard(NamedTuple):
    """What a turn added to a stream.

    Args:
        captions: its words.
        seconds: of the audio that were heard so far.
        is_over: whether no more will come.
    """

    captions: Captions
    seconds: float
    is_over: bool


OnHeard = Callable[[Heard | Exception], object]


class Speech:
    """What one client says. `Streams` alone calls it.

    Args:
        stream: fresh.
        sample_rate: of what comes, in Hz.
        on_heard: called in the thread of the streams, with what each turn added, or with why there will be no more.
    """

    def __init__(self, stream: Stream, sample_rate: int, on_heard: OnHeard) -> None:
        self.stream = stream
        self.on_heard = on_heard
        self.at_end = False
        self.is_taken = False  # a turn is working on it
        self.complete_since = 0.0  # when the last of what a turn works on had come
        self.sample_rate = sample_rate
        self._resampler = Resampler(sample_rate, stream.sample_rate)
        self._waiting = bytearray()
        self._arrivals: deque[tuple[int, float]] = deque()  # bytes in all, when the last of them came
        self._num_taken = 0  # bytes
        self._wanted = 0  # bytes
        self._heard = 0  # samples
        self.want()

    @property
    def chunk_seconds(self) -> float:
        """How much is heard at once."""
        return self.stream.ears.chunk_seconds

    def is_ahead(self, seconds: float) -> bool:
        """Whether so much and more waits to be heard, and the next chunk is not what it waits for."""
        return len(self._waiting) > max(self._wanted, SAMPLE_BYTES * self.sample_rate * seconds)

    @property
    def is_ready(self) -> bool:
        """Whether a turn would find something to do."""
        return self.at_end or len(self._waiting) >= self._wanted

    def add(self, samples: bytes) -> None:
        """Take up what has come."""
        self._waiting += samples
        self._arrivals.append((self._num_taken + len(self._waiting), time.monotonic()))

    def take(self) -> tuple[bytes, bool]:
        """Hand out what completes the next chunk, and whether that is the last."""
        taken = bytes(self._waiting[: self._wanted])
        del self._waiting[: len(taken)]
        self._num_taken += len(taken)
        while self._arrivals and self._arrivals[0][0] < self._num_taken:
            self._arrivals.popleft()
        self.complete_since = self._arrivals[0][1] if taken else time.monotonic()
        return taken, self.at_end and not self._waiting

    def hear(self, taken: bytes, is_last: bool) -> None:
        """Have the ears hear it."""
        samples = torch.frombuffer(bytearray(taken), dtype=torch.int16) if taken else torch.zeros(0)
        self._heard += len(samples)
        pieces = [torch.zeros(0), *self._resampler.feed(samples.float() / 2**15)]
        if is_last:
            pieces += self._resampler.finish()
        self.stream.ears.hear(torch.cat(pieces), at_end=is_last)

    def want(self) -> None:
        """Ask the ears how much completes their next chunk."""
        samples = math.ceil(self.stream.ears.num_wanted * self.sample_rate / self.stream.sample_rate)
        self._wanted = SAMPLE_BYTES * max(1, samples)

    def heard(self, captions: Captions, is_over: bool) -> Heard:
        """Say what was heard, and how far."""
        return Heard(captions, self._heard / self.sample_rate, is_over)


class Streams:
    """All that is being said, and the thread that hears it.

    Args:
        recognizer: which may be used elsewhere, too.
        settings: of each stream; a client may ask for another `chunk_seconds`.
        num_threads: that the net computes with; None: as many as torch finds right.
        on_turn: called with the seconds that each stream of a turn has waited, those of the net included.

    Attributes:
        note: what is to be known of captions by this model, or nothing.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        settings: StreamSettings = DEFAULT,
        *,
        num_threads: int | None = None,
        on_turn: Callable[[Sequence[float]], object] = lambda lags: None,
    ) -> None:
        encoder = recognizer.model.encoder.streaming
        if settings.chunk_seconds is None and encoder is not None and encoder.chunk_frames is None:
            settings = replace(settings, chunk_seconds=NO_CHUNK_SECONDS)
        self._make = partial(Stream, recognizer, **asdict(settings))
        self.note = self._make().note
        self._num_threads = num_threads
        self._on_turn = on_turn
        self._changed = threading.Condition()
        self._open: set[Speech] = set()
        self._ready: dict[Speech, None] = {}
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)

    def start(self) -> None:
        """Begin to hear."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether streams are heard."""
        return self._thread.is_alive() and not self._stopped

    def open(self, sample_rate: int, chunk_seconds: float | None, on_heard: OnHeard) -> Speech:
        """Begin a stream.

        Args:
            sample_rate: of what will come, in Hz.
            chunk_seconds: that are heard at once; None: as the server has it.
            on_heard: as for `Speech`.

        Raises:
            InputError: the model has no such chunk.
            StoppedError: nobody would hear it.
        """
        stream = self._make(chunk_seconds=chunk_seconds) if chunk_seconds else self._make()
        speech = Speech(stream, sample_rate, on_heard)
        with self._changed:
            if not self.alive:
                raise StoppedError
            self._open.add(speech)
        return speech

    def put(self, speech: Speech, samples: bytes) -> None:
        """Add to a stream: whole samples of 16 bits, little-endian."""
        with self._changed:
            speech.add(samples)
            self._look_at(speech)

    def end(self, speech: Speech) -> None:
        """Say that nothing more comes; what waits is heard."""
        with self._changed:
            speech.at_end = True
            self._look_at(speech)

    def close(self, speech: Speech) -> None:
        """Forget a stream, whatever waits of it."""
        with self._changed:
            self._open.discard(speech)
            self._ready.pop(speech, None)

    def stop(self) -> None:
        """Hear nothing more; whoever is not through is told."""
        with self._changed:
            self._stopped = True
            ended, self._open = self._open, set()
            self._ready.clear()
            self._changed.notify()
        for speech in ended:
            speech.on_heard(StoppedError())

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, for at most `seconds`."""
        self._thread.join(seconds)

    def _look_at(self, speech: Speech) -> None:
        """Put a stream into the next turn, if it has something for it."""
        if speech in self._open and speech not in self._ready and not speech.is_taken and speech.is_ready:
            self._ready[speech] = None
            self._changed.notify()

    # ---- in the thread

    def _run(self) -> None:
        if self._num_threads is not None:
            torch.set_num_threads(self._num_threads)
        try:
            while turn := self._next_turn():
                self._hear(turn)
        finally:  # whatever happens, nobody waits for a thread that is dead
            self.stop()

    def _next_turn(self) -> dict[Speech, tuple[bytes, bool]]:
        """Wait for streams that have something to be heard; none when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._stopped)
            turn = {speech: speech.take() for speech in self._ready}
            self._ready.clear()
            for speech in turn:
                speech.is_taken = True
        return turn

    def _hear(self, turn: dict[Speech, tuple[bytes, bool]]) -> None:
        try:
            for speech, taken in turn.items():
                speech.hear(*taken)
            advance = next(iter(turn)).stream.advance
            captions = advance([speech.stream.ears for speech in turn])
        except Exception as error:  # a fault of ours, or too little memory: a client can only send numbers
            logger.exception("a turn of %d streams failed", len(turn))
            for speech in turn:
                self.close(speech)
                speech.on_heard(error)
            return
        now = time.monotonic()
        self._on_turn([now - speech.complete_since for speech in turn])
        for (speech, (_, is_last)), said in zip(turn.items(), captions, strict=True):
            speech.want()
            speech.on_heard(speech.heard(said, is_last))
        with self._changed:
            for speech, (_, is_last) in turn.items():
                speech.is_taken = False
                if is_last:
                    self._open.discard(speech)
                self._look_at(speech)
