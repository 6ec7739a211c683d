"""Streaming recognition: final and provisional words of a waveform that arrives in pieces."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Protocol

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from asr.base.settings.read import check
from asr.base.settings.rule import THREADS, or_null
from asr.base.system.processes import torch_threads
from asr.core.data.labels import LANGUAGE
from asr.core.recognition.cached_stream import CachedStream, advance
from asr.core.recognition.captions import (
    ENDPOINT_SECONDS,
    SETTLED_SECONDS,
    Captions,
    StreamSettings,
    of_whole_characters,
)
from asr.core.recognition.inference import Inference
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.recordings import WAVEFORM, as_utterances, as_waveform
from asr.core.recognition.transcript import Transcript, Word
from asr.errors import InputError
from asr.interfaces import NO_BIASING, Biasing

LOOK_BACK_SECONDS = 8.0  # earlier audio recognised again with each chunk if the model cannot stream
LOOK_BACK_CHUNK_SECONDS = 0.96
# When final words are matched with new words, a shift by one second costs the same as this number of edits.
CHARACTERS_A_SECOND = 10.0
LOOK_BACK_SETTLED_SECONDS = 2.0  # a word is final when it ends this long before the end of the audio


class LookBackStream:
    """A stream that recognises its last seconds again with each chunk; this is slower, but works with any model.

    Args:
        recognizer: any recogniser.
        chunk_seconds: duration of a chunk.
        look_back_seconds: how much audio before the provisional words is recognised again, in seconds.
        language: language of the stream, for a model with a prompt; None: unknown.
        biasing: hotwords of the stream.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        chunk_seconds: float,
        look_back_seconds: float,
        language: str | None = None,
        biasing: Biasing = NO_BIASING,
    ) -> None:
        self.recognizer, self.biasing = recognizer, biasing
        self.labels = {} if language is None else {LANGUAGE: language}
        rate = recognizer.model.features.sample_rate
        self._rate = rate
        self.chunk_seconds = chunk_seconds
        self.at_end = self.flushes = False
        self._chunk, self._look_back = round(chunk_seconds * rate), round(look_back_seconds * rate)
        self.samples = torch.zeros(0)  # samples of the stream from `_start` on; they are recognised with the next chunk
        self._start = 0  # position of `samples` in the stream
        self._num_new = 0  # number of samples that have not been recognised yet
        self._final_until = 0.0  # time in seconds up to which words are final
        self._final: list[Word] = []  # final words within `samples`
        self._partial: list[Word] = []

    def hear(self, waveform: Tensor, at_end: bool = False) -> None:
        """Buffer more of the waveform; `look_back_together` recognises complete chunks."""
        self.samples = torch.cat([self.samples, waveform])
        self._num_new += len(waveform)
        self.at_end = at_end

    def flush(self) -> None:
        """Recognise all buffered audio with the next call of `look_back_together`, and make all words final."""
        self.flushes = True

    def replace_hotwords(self, biasing: Biasing) -> None:
        """Replace the hotwords; provisional words are recognised again with the new ones."""
        self.biasing = biasing

    @property
    def num_wanted(self) -> int:
        """Number of samples that the next chunk still lacks."""
        return max(0, self._chunk - self._num_new)

    @property
    def is_ready(self) -> bool:
        """Whether a chunk is complete."""
        return self.at_end or self.flushes or self.num_wanted == 0

    def take(self, transcript: Transcript) -> Captions:
        """Split the transcript of `samples` into new final words and provisional words, and drop old samples."""
        self._num_new = 0
        offset = self._start / self._rate
        end = offset + len(self.samples) / self._rate
        is_end, self.flushes = self.at_end or self.flushes, False
        settled = math.inf if is_end else end - LOOK_BACK_SETTLED_SECONDS
        words = [replace(word, start=word.start + offset, end=word.end + offset) for word in transcript.words]
        words = words[self._num_matched(words) :]
        num_final = sum(1 for _ in takewhile(lambda word: word.end <= settled, words))
        final, self._partial = words[:num_final], of_whole_characters(words[num_final:])
        if final:
            self._final_until = final[-1].end
        elif not words:
            self._final_until = max(self._final_until, min(settled, end))
        self._final += final
        dropped = max(0, round(self._final_until * self._rate) - self._look_back - self._start)
        self.samples, self._start = self.samples[dropped:].clone(), self._start + dropped
        self._final = [word for word in self._final if word.end > self._start / self._rate]
        return Captions(final, self._partial, is_end)

    def _num_matched(self, words: Sequence[Word]) -> int:
        """Count the first words of a new transcript that correspond to words that are already final.

        Spelling and times of these words may have changed. The result is the count with the smallest cost. The cost is
        the edit distance between the two texts plus a penalty: CHARACTERS_A_SECOND times the difference, in seconds,
        between the ends of their last words.
        """
        if not self._final:
            return 0
        text, end = " ".join(word.text for word in self._final), self._final[-1].end
        costs = [len(text) + CHARACTERS_A_SECOND * (end - self._final[0].start)]
        for number, word in enumerate(words, start=1):
            distance = Levenshtein.distance(text, " ".join(word.text for word in words[:number]))
            costs.append(distance + CHARACTERS_A_SECOND * abs(word.end - end))
        return costs.index(min(costs))

    def unchanged(self) -> Captions:
        """Return the previous provisional words, for a step in which nothing new was recognised."""
        return Captions([], self._partial)


def look_back_together(streams: Sequence[LookBackStream]) -> list[Captions]:
    """Recognise the buffered audio of all streams that have a complete chunk, in one batch.

    All streams use one recogniser.
    """
    ready = [stream for stream in streams if stream.is_ready]
    if not ready:
        return [stream.unchanged() for stream in streams]
    recognizer = ready[0].recognizer
    sample_rate = recognizer.model.features.sample_rate
    utterances, waveforms = as_utterances([stream.samples for stream in ready], sample_rate, sample_rate)
    labelled = [replace(each, labels=stream.labels) for each, stream in zip(utterances, ready, strict=True)]
    biasings = {utterance.id: stream.biasing for utterance, stream in zip(labelled, ready, strict=True)}
    options = Inference(biasing_of=lambda utterance: biasings[utterance.id])
    transcripts = dict(zip(ready, recognizer.transcripts(labelled, options, waveforms), strict=True))
    return [stream.take(transcripts[stream]) if stream in transcripts else stream.unchanged() for stream in streams]


class Ears(Protocol):
    """Buffered audio and recognition state of a `Stream`: a `CachedStream` or a `LookBackStream`.

    `hear` only buffers audio; `Stream.advance` recognises the complete chunks of several streams together.

    Args:
        chunk_seconds: duration of a chunk.
    """

    chunk_seconds: float

    @property
    def num_wanted(self) -> int:
        """Number of samples that the next chunk still lacks."""

    def hear(self, waveform: Tensor, at_end: bool = False) -> None:
        """Buffer more of the waveform; `Stream.advance` recognises complete chunks."""

    def flush(self) -> None:
        """Make all words final with the next call of `Stream.advance`."""

    def replace_hotwords(self, biasing: Biasing) -> None:
        """Replace the hotwords from the next chunk on."""


class Stream:
    """Recognise speech while it is spoken.

        stream = asr.Stream(asr.load_recognizer("runs/streaming"))
        for samples in microphone:
            final, partial, *_ = stream.feed(samples)
        final, *_ = stream.finish()

    A streaming model recognises the same words as when it processes the whole recording in one pass. Any other model
    recognises the last seconds again with each chunk, which takes longer; `note` then states the reason.

    Args:
        recognizer: the model and its decoder.
        chunk_seconds: duration of a chunk; this and the next five arguments are fields of `StreamSettings`.
        left_seconds: left context of a chunk.
        right_seconds: right context of a chunk.
        latency: one of the latencies of a model that has a list of them, in place of `chunk_seconds`.
        endpoint_seconds: duration of silence that ends a segment.
        settled_seconds: time from a word's end until the word is final.
        num_threads: number of torch's threads per chunk; None: torch's current number. A chunk is too small to gain
            from a second thread; on busy cores, most of the time would be spent waiting for that thread. An exported
            model uses the number of threads with which it was opened.
        language: language of the stream, for a model with a prompt; None: unknown.
        hotwords: names and terms to recognise more easily, in addition to those of the decoder's settings.
        hotword_score: bonus for each word of a hotword (natural logarithm); None: that of the decoder's settings.
        biasing: compiled hotwords (`Recognizer.biasing`), in place of `hotwords`.

    Raises:
        InputError: a setting is invalid.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        *,
        chunk_seconds: float | None = None,
        left_seconds: float | None = None,
        right_seconds: float | None = None,
        latency: float | None = None,
        endpoint_seconds: float | None = ENDPOINT_SECONDS,
        settled_seconds: float | None = SETTLED_SECONDS,
        num_threads: int | None = 1,
        language: str | None = None,
        hotwords: Iterable[str] = (),
        hotword_score: float | None = None,
        biasing: Biasing | None = None,
    ) -> None:
        durations = chunk_seconds, left_seconds, right_seconds, latency, endpoint_seconds, settled_seconds
        settings = StreamSettings(*durations, language)
        check(settings)
        if language is not None:
            recognizer.model.labels.check(LANGUAGE, language, "language")
        or_null(THREADS).check("num_threads", num_threads)
        biasing = biasing or recognizer.biasing(hotwords, hotword_score)
        recognizer.model.eval()
        self._recognizer = recognizer
        self.sample_rate = recognizer.model.features.sample_rate
        self._num_threads = num_threads
        self._dtype = next((weight.dtype for weight in recognizer.model.parameters()), torch.float32)
        self.ears: Ears
        # Recognises the complete chunks of several streams of this recogniser; called with the `ears` of each stream.
        self.advance: Callable[[Sequence[Any]], list[Captions]]
        reason = why_not(recognizer)
        self.note = ""
        if not reason:
            self.ears = CachedStream(recognizer, settings, biasing)
            self.advance = advance
            return
        for name, value in {"right_seconds": right_seconds, "latency": latency}.items():
            if value is not None:
                raise InputError(f"{name} must be left out: {reason}; got {value:g}.")
        chunk = chunk_seconds or LOOK_BACK_CHUNK_SECONDS
        look_back = LOOK_BACK_SECONDS if left_seconds is None else left_seconds
        self.ears = LookBackStream(recognizer, chunk, look_back, language, biasing)
        self.advance = look_back_together
        self.note = f"at least the last {look_back:g} s are recognised again every {chunk:g} s, because {reason}"

    def feed(self, samples: Tensor | np.ndarray[Any, Any]) -> Captions:
        """Recognise more of the waveform.

        Args:
            samples: float tensor or array (S,) in [-1, 1] at `sample_rate`, of any length.

        Raises:
            InputError: the samples have another shape or dtype, or are NaN.
        """
        waveform = as_waveform(samples, f"samples must be {WAVEFORM}").to(self._dtype)
        with torch_threads(self._num_threads):
            self.ears.hear(waveform)
            return self.advance([self.ears])[0]

    def replace_hotwords(self, hotwords: Iterable[str], score: float | None = None) -> None:
        """Replace the hotwords of this stream; the new ones apply from the next word on.

        Raises:
            InputError: an argument is invalid, or the decoder prefers no hotwords.
        """
        self.ears.replace_hotwords(self._recognizer.biasing(hotwords, score))

    def flush(self) -> Captions:
        """Make all recognised words final, and end the segment; the stream continues.

        A streaming model recognises the last incomplete chunk and its right context later, with more audio.
        """
        with torch_threads(self._num_threads):
            self.ears.flush()
            return self.advance([self.ears])[0]

    def finish(self) -> Captions:
        """Recognise the remaining audio and end the stream; all words are final."""
        with torch_threads(self._num_threads):
            self.ears.hear(torch.zeros(0), at_end=True)
            return self.advance([self.ears])[0]


def why_not(recognizer: Recognizer) -> str:
    """Return the reason why a recogniser cannot carry its state from chunk to chunk; "" if it can."""
    encoder, decode = recognizer.model.encoder, recognizer.decode
    if encoder.streaming is None:
        return f"{type(encoder).__name__} needs the whole utterance at once (train encoder=conformer_streaming_s)"
    if decode.streaming is None:
        greedy = recognizer.model.head.decoders.greedy[0]
        return f"{type(decode).__name__} needs the whole utterance at once (choose another, such as --decode {greedy})"
    return ""
