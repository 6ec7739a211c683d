"""Speech as it is spoken: words of a waveform that comes in pieces, some for good and some that may yet change."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from asr.errors import InputError
from asr.recognition.cached_stream import CachedStream, advance
from asr.recognition.captions import Captions
from asr.recognition.look_back_stream import LookBackStream, look_back_together
from asr.recognition.recognizer import Recognizer
from asr.recognition.recordings import WAVEFORM, as_waveform
from asr.recognition.stream_settings import ENDPOINT_SECONDS, SETTLED_SECONDS, StreamSettings
from asr.settings.read import check
from asr.settings.rule import THREADS, or_null

LOOK_BACK_SECONDS = 8.0  # that are recognised again with each chunk by a model that cannot go on
LOOK_BACK_CHUNK_SECONDS = 0.96


class Ears(Protocol):
    """What a stream is heard with; `Stream.advance` goes on with many of them.

    Args:
        chunk_seconds: that are recognised at once.
    """

    chunk_seconds: float

    @property
    def num_wanted(self) -> int:
        """Samples after which the next chunk is complete."""

    def hear(self, waveform: Tensor, at_end: bool = False) -> None:
        """Take up more of the waveform; what is complete waits to be recognised."""


class Stream:
    """Recognise speech while it is spoken.

        stream = asr.Stream(asr.load_recognizer("runs/streaming"))
        for samples in microphone:
            final, partial, _ = stream.feed(samples)
        final, _, _ = stream.finish()

    A model that goes on from chunk to chunk gives the words that it gives of the whole at once. Any other recognises
    the last seconds again with each chunk, which takes longer; `note` says so.

    Args:
        recognizer: the model and its decoder.
        chunk_seconds: as in `StreamSettings`, like the next four.
        left_seconds: seen before a chunk.
        right_seconds: seen after a chunk.
        endpoint_seconds: silence that ends a segment.
        settled_seconds: after which a word is final.
        num_threads: that torch computes a chunk with; None: as many as it has. A chunk is too small to gain from a
            second one, and where the cores are busy waiting for it takes most of the time. An exported model computes
            with those it was opened with.

    Raises:
        InputError: a setting does not hold.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        *,
        chunk_seconds: float | None = None,
        left_seconds: float | None = None,
        right_seconds: float | None = None,
        endpoint_seconds: float | None = ENDPOINT_SECONDS,
        settled_seconds: float | None = SETTLED_SECONDS,
        num_threads: int | None = 1,
    ) -> None:
        settings = StreamSettings(chunk_seconds, left_seconds, right_seconds, endpoint_seconds, settled_seconds)
        check(settings)
        or_null(THREADS).check("num_threads", num_threads)
        recognizer.model.eval()
        self.sample_rate = recognizer.model.features.sample_rate
        self._num_threads = num_threads
        self._dtype = next((weight.dtype for weight in recognizer.model.parameters()), torch.float32)
        self.ears: Ears
        self.advance: Callable[[Sequence[Any]], list[Captions]]  # of the ears of any streams of this recogniser
        reason = why_not(recognizer)
        self.note = ""
        if not reason:
            self.ears = CachedStream(recognizer, settings)
            self.advance = advance
            return
        if right_seconds is not None:
            raise InputError(f"right_seconds must be left out: {reason}; got {right_seconds:g}.")
        chunk = chunk_seconds or LOOK_BACK_CHUNK_SECONDS
        look_back = LOOK_BACK_SECONDS if left_seconds is None else left_seconds
        self.ears = LookBackStream(recognizer, chunk, look_back)
        self.advance = look_back_together
        self.note = f"every {chunk:g} s the last {look_back:g} s and more are recognised again, since {reason}"

    def feed(self, samples: Tensor | np.ndarray[Any, Any]) -> Captions:
        """Recognise more of the waveform.

        Args:
            samples: float tensor or array (S,) in [-1, 1] at `sample_rate`, of any length.

        Raises:
            InputError: they are not.
        """
        waveform = as_waveform(samples, f"samples must be {WAVEFORM}").to(self._dtype)
        with threads(self._num_threads):
            self.ears.hear(waveform)
            return self.advance([self.ears])[0]

    def finish(self) -> Captions:
        """Recognise what is left; all words are final then. The stream is over."""
        with threads(self._num_threads):
            self.ears.hear(torch.zeros(0), at_end=True)
            return self.advance([self.ears])[0]


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Have torch compute with this many threads; None: with those it has."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if number is None else number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def why_not(recognizer: Recognizer) -> str:
    """Say why a recogniser cannot go on from chunk to chunk; nothing where it can."""
    encoder, decode = recognizer.model.encoder, recognizer.decode
    if encoder.streaming is None:
        return f"{type(encoder).__name__} hears all of an utterance at once (train encoder=conformer_streaming_s)"
    if decode.streaming is None:
        by_need = {"joiner": "transducer_greedy", "duration_joiner": "tdt_greedy"}
        which = next((name for need, name in by_need.items() if need in decode.needs), "greedy or beam")
        return f"{type(decode).__name__} decodes all of an utterance at once (choose --decode {which})"
    return ""
