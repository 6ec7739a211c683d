"""Live speech of all clients, and the thread that recognises it.

In each turn, the thread recognises the next chunk of all streams that have a complete chunk, in one batch. Because a
turn takes only one chunk of each stream, a client that sends faster than real time gets no larger share of the network.
The words of a stream do not depend on the other streams of a turn. Recordings are recognised in another thread, because
captions would otherwise wait for batches of recordings. Both threads may use the network, which has no state between
calls.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from asr.apps.serve.jobs import StoppedError
from asr.apps.serve.serving_thread import ServingThread
from asr.base.audio.resampling import Resampler
from asr.core.recognition.captions import DEFAULT, Captions, StreamSettings
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.streaming import Stream
from asr.interfaces import NO_BIASING, Biasing

SAMPLE_BYTES = 2
# Minimum duration of the audio that a turn takes from a stream whose audio is resampled. The resampler returns samples
# in bursts of up to 0.1 s; with a chunk that lacks one sample, the turns until the next burst would take one each.
MIN_TURN_SECONDS = 0.01
NO_CHUNK_SECONDS = 0.64  # duration of a chunk for models without a recommended duration

logger = logging.getLogger(__name__)


class Update(NamedTuple):
    """New words of a stream after a turn.

    Args:
        captions: the words.
        seconds: seconds of audio recognised so far.
        is_over: whether this is the last update.
    """

    captions: Captions
    seconds: float
    is_over: bool


OnUpdate = Callable[[Update | Exception], object]


class Speech:
    """The stream of one client, used only by `Streams`.

    Args:
        stream: a new stream.
        sample_rate: sample rate of the received audio, in Hz.
        on_update: called in the streams' thread after each turn, or with the error that ended the stream.
    """

    def __init__(self, stream: Stream, sample_rate: int, on_update: OnUpdate) -> None:
        self.stream = stream
        self.on_update = on_update
        self.at_end = False
        self.new_biasing: Biasing | None = None  # hotwords that replace the current ones in the next turn
        self._flush_at: int | None = None  # number of bytes after which all words become final
        self.is_taken = False  # whether a turn is processing the stream's audio
        self.complete_since = 0.0  # when the last byte of the current turn's audio arrived
        self.sample_rate = sample_rate
        self._resampler = Resampler(sample_rate, stream.sample_rate)
        self._waiting = bytearray()
        self._arrivals: deque[tuple[int, float]] = deque()  # pairs of the number of bytes received so far and the time
        self._num_taken = 0  # number of bytes that all turns have taken so far
        is_resampled = sample_rate != stream.sample_rate
        self._min_samples = math.ceil(MIN_TURN_SECONDS * sample_rate) if is_resampled else 1
        self._wanted = 0  # number of bytes that complete the next chunk
        self._num_samples = 0  # number of samples that earlier turns have processed
        self.want()

    @property
    def chunk_seconds(self) -> float:
        """Seconds of audio in a chunk."""
        return self.stream.ears.chunk_seconds

    def is_ahead(self, seconds: float) -> bool:
        """Whether more than `seconds` of audio is buffered beyond the next chunk."""
        return len(self._waiting) > max(self._wanted, SAMPLE_BYTES * self.sample_rate * seconds)

    @property
    def is_ready(self) -> bool:
        """Whether the stream has a complete chunk, is flushed, or has ended."""
        return self.at_end or self._flush_at is not None or len(self._waiting) >= self._wanted

    def add(self, samples: bytes) -> None:
        """Buffer received samples."""
        self._waiting += samples
        self._arrivals.append((self._num_taken + len(self._waiting), time.monotonic()))

    def flush(self) -> None:
        """Make all words of the received audio final; a flush before the last one was processed replaces it."""
        self._flush_at = (self._num_taken + len(self._waiting)) // SAMPLE_BYTES * SAMPLE_BYTES

    def take(self) -> tuple[bytes, bool]:
        """Remove and return the bytes that complete the next chunk, and whether it is the last chunk."""
        most = self._wanted if self._flush_at is None else min(self._wanted, self._flush_at - self._num_taken)
        taken = bytes(self._waiting[:most])
        del self._waiting[: len(taken)]
        self._num_taken += len(taken)
        if self._num_taken == self._flush_at:
            self._flush_at = None
            self.stream.ears.flush()
        while self._arrivals and self._arrivals[0][0] < self._num_taken:
            self._arrivals.popleft()
        self.complete_since = self._arrivals[0][1] if taken else time.monotonic()
        return taken, self.at_end and not self._waiting

    def process(self, taken: bytes, is_last: bool) -> None:
        """Resample a chunk and pass it to the stream."""
        whole = bytearray(taken[: len(taken) // SAMPLE_BYTES * SAMPLE_BYTES])
        samples = torch.frombuffer(whole, dtype=torch.int16) if whole else torch.zeros(0)
        self._num_samples += len(samples)
        waveform = self._resampler.feed(samples.float() / 2**15)
        if is_last:
            waveform = torch.cat([waveform, self._resampler.finish()])
        self.stream.ears.hear(waveform, at_end=is_last)

    def want(self) -> None:
        """Compute the number of bytes that complete the next chunk."""
        samples = math.ceil(self.stream.ears.num_wanted * self.sample_rate / self.stream.sample_rate)
        self._wanted = SAMPLE_BYTES * max(self._min_samples, samples)

    def update(self, captions: Captions, is_over: bool) -> Update:
        """Return the update that contains these captions."""
        return Update(captions, self._num_samples / self.sample_rate, is_over)


class Streams(ServingThread):
    """All open streams, and the thread that recognises them.

    Args:
        recognizer: the recogniser, which other threads may use at the same time.
        settings: settings of each stream; a client may choose another `chunk_seconds` or `latency`.
        num_threads: number of threads for the network's computations; None: torch's default.
        on_turn: called after each turn with the lag of each stream: seconds from the chunk's arrival to its words.

    Attributes:
        note: a limitation of captions with this model; may be empty.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        settings: StreamSettings = DEFAULT,
        *,
        num_threads: int | None = None,
        on_turn: Callable[[Sequence[float]], object] = lambda lags: None,
    ) -> None:
        super().__init__("streams", num_threads)
        encoder = recognizer.model.encoder.streaming
        if settings.chunk_seconds is None and encoder is not None and encoder.chunk_frames is None:
            settings = replace(settings, chunk_seconds=NO_CHUNK_SECONDS)
        self._make = partial(Stream, recognizer, **asdict(settings))
        self.note = self._make().note
        self._on_turn = on_turn
        self._open: set[Speech] = set()
        self._ready: dict[Speech, None] = {}

    def open(
        self,
        sample_rate: int,
        chunk_seconds: float | None,
        latency: float | None,
        language: str | None,
        on_update: OnUpdate,
        biasing: Biasing = NO_BIASING,
    ) -> Speech:
        """Begin a stream.

        Args:
            sample_rate: sample rate of the audio, in Hz.
            chunk_seconds: length of a chunk; None: the server's setting.
            latency: one of the model's list of latencies, in place of `chunk_seconds`; None: the server's setting.
            language: language of the stream, for a model with a prompt; None: the server's.
            on_update: argument of `Speech`.
            biasing: hotwords of the stream.

        Raises:
            InputError: the model does not support chunks of this length or this latency, or does not know the language.
            StoppedError: the thread has ended.
        """
        changes: dict[str, Any] = {"language": language} if language else {}
        if chunk_seconds is not None or latency is not None:
            changes |= {"chunk_seconds": chunk_seconds, "latency": latency}
        stream = self._make(biasing=biasing, **changes)
        speech = Speech(stream, sample_rate, on_update)
        with self._changed:
            if not self.alive:
                raise StoppedError
            self._open.add(speech)
        return speech

    def put(self, speech: Speech, samples: bytes) -> None:
        """Add audio to a stream: whole samples of 16 bits, little-endian."""
        with self._changed:
            speech.add(samples)
            self._look_at(speech)

    def flush(self, speech: Speech) -> None:
        """Make all words of a stream final; it continues."""
        with self._changed:
            speech.flush()
            self._look_at(speech)

    def replace_hotwords(self, speech: Speech, biasing: Biasing) -> None:
        """Replace the hotwords of a stream."""
        with self._changed:
            speech.new_biasing = biasing

    def end(self, speech: Speech) -> None:
        """Mark the end of a stream; its buffered audio is still recognised."""
        with self._changed:
            speech.at_end = True
            self._look_at(speech)

    def close(self, speech: Speech) -> None:
        """Remove a stream, and discard its buffered audio."""
        with self._changed:
            self._open.discard(speech)
            self._ready.pop(speech, None)

    def stop(self) -> None:
        """Stop the thread, and end all open streams with StoppedError."""
        with self._changed:
            self._stopped = True
            ended, self._open = self._open, set()
            self._ready.clear()
            self._changed.notify()
        for speech in ended:
            speech.on_update(StoppedError())

    def _look_at(self, speech: Speech) -> None:
        """Add a stream to the next turn if it has a complete chunk, is flushed, or has ended."""
        if speech in self._open and speech not in self._ready and not speech.is_taken and speech.is_ready:
            self._ready[speech] = None
            self._changed.notify()

    # ---- methods that run in the thread

    def _turn(self) -> bool:
        """Process the chunks of all streams that are ready; return False when stopped."""
        if turn := self._next_turn():
            self._process(turn)
        return bool(turn)

    def _next_turn(self) -> dict[Speech, tuple[bytes, bool]]:
        """Wait for streams that are ready; return them with their chunks, or {} when stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._stopped)
            turn = {speech: speech.take() for speech in self._ready}
            self._ready.clear()
            for speech in turn:
                speech.is_taken = True
                if speech.new_biasing is not None:
                    speech.stream.ears.replace_hotwords(speech.new_biasing)
                    speech.new_biasing = None
        return turn

    def _process(self, turn: dict[Speech, tuple[bytes, bool]]) -> None:
        try:
            for speech, taken in turn.items():
                speech.process(*taken)
            advance = next(iter(turn)).stream.advance
            captions = advance([speech.stream.ears for speech in turn])
        except Exception as error:  # a fault of the program or too little memory; a client's audio cannot cause it
            logger.exception("a turn of %d streams failed", len(turn))
            for speech in turn:
                self.close(speech)
                speech.on_update(error)
            return
        now = time.monotonic()
        self._on_turn([now - speech.complete_since for speech in turn])
        for (speech, (_, is_last)), words in zip(turn.items(), captions, strict=True):
            speech.want()
            speech.on_update(speech.update(words, is_last))
        with self._changed:
            for speech, (_, is_last) in turn.items():
                speech.is_taken = False
                if is_last:
                    self._open.discard(speech)
                self._look_at(speech)
