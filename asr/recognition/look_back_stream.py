"""Streams of models without a cached state: each chunk is recognised together with the last seconds before it."""

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

# When final words are matched with new words, a shift by one second costs the same as this number of edits.
CHARACTERS_A_SECOND = 10.0
SETTLED_SECONDS = 2.0  # a word is final when it ends this long before the end of the audio


class LookBackStream:
    """A stream that recognises its last seconds again with each chunk; this is slower, but works with any model.

    Args:
        recognizer: any recogniser.
        chunk_seconds: duration of a chunk.
        look_back_seconds: how much audio before the provisional words is recognised again, in seconds.
    """

    def __init__(self, recognizer: Recognizer, chunk_seconds: float, look_back_seconds: float) -> None:
        self.recognizer = recognizer
        rate = recognizer.model.features.sample_rate
        self._rate = rate
        self.chunk_seconds = chunk_seconds
        self.at_end = False
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

    @property
    def num_wanted(self) -> int:
        """Number of samples that the next chunk still lacks."""
        return max(0, self._chunk - self._num_new)

    @property
    def is_ready(self) -> bool:
        """Whether a chunk is complete."""
        return self.at_end or self.num_wanted == 0

    def take(self, transcript: Transcript) -> Captions:
        """Split the transcript of `samples` into new final words and provisional words, and drop old samples."""
        self._num_new = 0
        offset = self._start / self._rate
        end = offset + len(self.samples) / self._rate
        settled = math.inf if self.at_end else end - SETTLED_SECONDS
        words = [replace(word, start=word.start + offset, end=word.end + offset) for word in transcript.words]
        words = words[self._num_matched(words) :]
        num_final = sum(1 for _ in takewhile(lambda word: word.end <= settled, words))
        final, self._partial = words[:num_final], words[num_final:]
        if final:
            self._final_until = final[-1].end
        elif not words:
            self._final_until = max(self._final_until, min(settled, end))
        self._final += final
        dropped = max(0, round(self._final_until * self._rate) - self._look_back - self._start)
        self.samples, self._start = self.samples[dropped:].clone(), self._start + dropped
        self._final = [word for word in self._final if word.end > self._start / self._rate]
        return Captions(final, self._partial, is_end=self.at_end)

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
    """Recognise, in one batch, the buffered audio of all streams that have a complete chunk; all use one recogniser."""
    ready = [stream for stream in streams if stream.is_ready]
    if not ready:
        return [stream.unchanged() for stream in streams]
    recognizer = ready[0].recognizer
    samples = [stream.samples for stream in ready]
    transcripts = iter(recognizer.transcribe(samples, sample_rate=recognizer.model.features.sample_rate))
    return [stream.take(next(transcripts)) if stream.is_ready else stream.unchanged() for stream in streams]
