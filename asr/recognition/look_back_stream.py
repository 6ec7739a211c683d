"""A stream of a model that cannot go on: its last seconds are recognised again with each chunk."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from asr.recognition.captions import Captions
from asr.recognition.recognizer import Recognizer
from asr.recognition.transcript import Transcript, Word

CHARACTERS_A_SECOND = 10.0  # that a shift of a second counts for, where words are found again
SETTLED_SECONDS = 2.0  # behind which a word that is recognised again changes no more


class LookBackStream:
    """A stream whose last seconds are recognised again with each chunk: for any model, and slower.

    Args:
        recognizer: any.
        chunk_seconds: that are waited for.
        look_back_seconds: that are heard before the words that are not final.
    """

    def __init__(self, recognizer: Recognizer, chunk_seconds: float, look_back_seconds: float) -> None:
        self.recognizer = recognizer
        rate = recognizer.model.features.sample_rate
        self._rate = rate
        self.chunk_seconds = chunk_seconds
        self.at_end = False
        self._chunk, self._look_back = round(chunk_seconds * rate), round(look_back_seconds * rate)
        self.samples = torch.zeros(0)  # since `_start`, which are recognised next
        self._start = 0  # sample
        self._waiting = 0  # samples that were not recognised yet
        self._said = 0.0  # second up to which words are final
        self._final: list[Word] = []  # words that are final, as far as they lie in `samples`
        self._partial: list[Word] = []

    def hear(self, waveform: Tensor, at_end: bool = False) -> None:
        """Take up more of the waveform; if it completes a chunk, that waits for `look_back_together`."""
        self.samples = torch.cat([self.samples, waveform])
        self._waiting += len(waveform)
        self.at_end = at_end

    @property
    def num_wanted(self) -> int:
        """Samples after which the next chunk is complete."""
        return max(0, self._chunk - self._waiting)

    @property
    def is_ready(self) -> bool:
        """Whether a chunk waits."""
        return self.at_end or self.num_wanted == 0

    def take(self, transcript: Transcript) -> Captions:
        """Tell final words from partial ones in what `samples` were recognised as, and forget what is not needed."""
        self._waiting = 0
        offset = self._start / self._rate
        heard = offset + len(self.samples) / self._rate
        settled = math.inf if self.at_end else heard - SETTLED_SECONDS
        words = [replace(word, start=word.start + offset, end=word.end + offset) for word in transcript.words]
        words = words[self._num_said(words) :]
        num_final = sum(1 for _ in takewhile(lambda word: word.end <= settled, words))
        final, self._partial = words[:num_final], words[num_final:]
        if final:
            self._said = final[-1].end
        elif not words:
            self._said = max(self._said, min(settled, heard))
        self._final += final
        dropped = max(0, round(self._said * self._rate) - self._look_back - self._start)
        self.samples, self._start = self.samples[dropped:].clone(), self._start + dropped
        self._final = [word for word in self._final if word.end > self._start / self._rate]
        return Captions(final, self._partial, is_end=self.at_end)

    def _num_said(self, words: Sequence[Word]) -> int:
        """How many of the words, as they are recognised now, are final ones.

        They need not be spelt as before, nor have the same times: those are taken whose characters and whose end differ
        least.
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
        """Say what was said last, if nothing new was recognised."""
        return Captions([], self._partial)


def look_back_together(streams: Sequence[LookBackStream]) -> list[Captions]:
    """Recognise the last seconds once more of those streams of one recogniser that have a chunk, as one batch."""
    ready = [stream for stream in streams if stream.is_ready]
    if not ready:
        return [stream.unchanged() for stream in streams]
    recognizer = ready[0].recognizer
    samples = [stream.samples for stream in ready]
    transcripts = iter(recognizer.transcribe(samples, sample_rate=recognizer.model.features.sample_rate))
    return [stream.take(next(transcripts)) if stream.is_ready else stream.unchanged() for stream in streams]
