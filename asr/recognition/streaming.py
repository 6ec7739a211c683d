"""Speech as it is spoken: words of a waveform that comes in pieces, some for good and some that may yet change.

A word is final when the next one has begun in all hypotheses that the decoder keeps (a best path is but one), when it
was said so long ago that the best of them decides, or when nothing was said behind it for a while: that ends a stretch
of speech, and the best hypothesis is taken.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
import torch.nn.functional as F
from rapidfuzz.distance import Levenshtein
from torch import Tensor, nn

from asr.errors import InputError
from asr.interfaces import BLANK_ID, Hypothesis, Span, StreamingDecoder, StreamingEncoder
from asr.recognition.feature_stream import Remainder, stream_features
from asr.recognition.recognizer import Recognizer
from asr.recognition.recordings import WAVEFORM, as_waveform
from asr.recognition.timing import with_times
from asr.recognition.transcript import Transcript, Word
from asr.settings.rule import CHUNK_SECONDS, LEFT_SECONDS, RIGHT_SECONDS, THREADS, or_null
from asr.text.words import spell

NO_TOKENS = Hypothesis([], 0.0, [], [])
ENDPOINT_SECONDS = 1.0  # of silence, which end a stretch of speech
LOOK_BACK_SECONDS = 8.0  # that are recognised again with each chunk by a model that cannot go on
LOOK_BACK_CHUNK_SECONDS = 0.96
SETTLED_SECONDS = 1.0  # behind the end of a word, after which the best hypothesis decides
LONG_WORD_SECONDS = 10.0  # after which the tokens of a word that has not ended keep their times
CHARACTERS_A_SECOND = 10.0  # that a shift of a second counts for, where words are found again
LOOK_BACK_SETTLED_SECONDS = 2.0  # behind which a word that is recognised again changes no more


class Captions(NamedTuple):
    """What a piece of a stream added.

    Args:
        final: words that are final now, and were not before.
        partial: words behind them, as far as they were heard; all of them, each time.
        is_end: whether a stretch of speech has ended.
    """

    final: list[Word]
    partial: list[Word]
    is_end: bool = False


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
        chunk_seconds: that are recognised at once, rounded to encoder frames; None: as the model has it.
        left_seconds: that are seen before a chunk; None: as the model has it.
        right_seconds: that are seen behind a chunk, which waits for them; None: as the model has it.
        endpoint_seconds: of silence that end a stretch of speech; None: none do.
        settled_seconds: behind the end of a word after which the best hypothesis decides it; None: it may take long.
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
        or_null(CHUNK_SECONDS).check("chunk_seconds", chunk_seconds)
        or_null(LEFT_SECONDS).check("left_seconds", left_seconds)
        or_null(RIGHT_SECONDS).check("right_seconds", right_seconds)
        or_null(CHUNK_SECONDS).check("endpoint_seconds", endpoint_seconds)
        or_null(CHUNK_SECONDS).check("settled_seconds", settled_seconds)
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
            sizes = chunk_seconds, left_seconds, right_seconds
            self.ears = CachedStream(recognizer, *sizes, endpoint_seconds, settled_seconds)
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
    if not hasattr(encoder, "initial_state"):
        return f"{type(encoder).__name__} hears all of an utterance at once (train encoder=conformer_streaming_s)"
    if not hasattr(decode, "initial_state") or recognizer.model.head.frame_head is None:
        which = "transducer_greedy" if hasattr(recognizer.model.head, "joiner") else "greedy or beam"
        return f"{type(decode).__name__} decodes all of an utterance at once (choose --decode {which})"
    return ""


class CachedStream:
    """A stream that goes on from what encoder and decoder keep: nothing is computed twice, and memory does not grow.

    Args:
        recognizer: that can, as `why_not` says.
        chunk_seconds: as for `Stream`, as the next four are.
        left_seconds: see there.
        right_seconds: see there.
        endpoint_seconds: see there.
        settled_seconds: see there.
    """

    def __init__(
        self,
        recognizer: Recognizer,
        chunk_seconds: float | None = None,
        left_seconds: float | None = None,
        right_seconds: float | None = None,
        endpoint_seconds: float | None = None,
        settled_seconds: float | None = None,
    ) -> None:
        model = recognizer.model
        self.recognizer = recognizer
        self.encoder = cast(StreamingEncoder, model.encoder)
        self.decode = cast(StreamingDecoder, recognizer.decode)
        if chunk_seconds is not None:
            chunk: int | None = max(1, round(chunk_seconds / model.frame_seconds))
        else:
            chunk = self.encoder.chunk_frames
        if chunk is None:
            raise InputError("chunk_seconds must be given for a model whose encoder.chunk_frames is null; got none.")
        left = self.encoder.left_frames if left_seconds is None else round(left_seconds / model.frame_seconds)
        self.chunk = chunk * self.encoder.stride  # feature frames
        right = self.encoder.right_frames if right_seconds is None else round(right_seconds / model.frame_seconds)
        made_for = {
            "left": (left, self.encoder.left_frames, "before"),
            "right": (right, self.encoder.right_frames, "behind"),
        }
        for side, (given, frames, where) in made_for.items():
            if model.is_program and given != frames:
                must = f"an exported model must see {frames} encoder frames {where} a chunk, as its program was made"
                raise InputError(f"{must}; got {given}. Leave {side}_seconds out.")
        self.right = right * self.encoder.stride  # that are seen behind a chunk, and begin the next
        self.chunk_seconds, self.right_seconds = chunk * model.frame_seconds, right * model.frame_seconds
        self.endpoint = None if endpoint_seconds is None else max(1, round(endpoint_seconds / model.frame_seconds))
        self.settled = None if settled_seconds is None else max(1, round(settled_seconds / model.frame_seconds))
        self.long_word = max(1, round(LONG_WORD_SECONDS / model.frame_seconds))
        self.at_end = False
        self.shape = self.chunk, left, right  # streams of the same one go through the net together
        self.state = self.encoder.initial_state(1, left)
        self._remainder = Remainder()
        self._features = torch.zeros(0, model.features.dim)  # that wait for the end of their chunk, (T, F)
        self._decoded = self.decode.initial_state()
        self._placed = NO_TOKENS  # of a long word that has not ended: its first tokens, which the decoder has forgotten
        self._hypothesis = NO_TOKENS  # behind them
        self._log_probs: list[Tensor] = []  # of the frames since `_start`, in which the hypothesis lies
        self._start = 0
        self._silence = 0  # frames, up to the last
        self._partial: list[Word] = []

    def feed(self, waveform: Tensor) -> Captions:
        """Hear more."""
        self.hear(waveform)
        return advance([self])[0]

    def finish(self) -> Captions:
        """Recognise what is left."""
        self.hear(torch.zeros(0), at_end=True)
        return advance([self])[0]

    def hear(self, waveform: Tensor, at_end: bool = False) -> None:
        """Take up more of the waveform; what is complete waits for `advance`."""
        features, at = self.recognizer.model.features, self._remainder
        frames, self._remainder = stream_features(features, waveform, at, at_end)
        self._features = torch.cat([self._features, frames])
        self.at_end = at_end

    @property
    def num_wanted(self) -> int:
        """Samples after which the next chunk is complete."""
        features, remainder = self.recognizer.model.features, self._remainder
        missing = self.chunk + self.right - len(self._features)
        last = remainder.frames + missing - 1  # frame that is seen from the chunk, from the remainder's start
        return max(0, last * features.hop + features.samples_ahead - len(remainder.samples))

    @property
    def is_ready(self) -> bool:
        """Whether a chunk waits."""
        return len(self._features) >= (1 if self.at_end else self.chunk + self.right)

    def next_chunk(self) -> Tensor:
        """Hand out the chunk that waits, and what is seen behind it."""
        seen, self._features = self._features[: self.chunk + self.right], self._features[self.chunk :].clone()
        return seen

    def decode_chunk(self, encoder_out: Tensor) -> Captions:
        """Go on by what the encoder gave, (T', D)."""
        log_probs = self.recognizer.log_probs(encoder_out)
        with torch.inference_mode(), self.recognizer.encoder.autocast():
            length = torch.tensor([len(encoder_out)], device=encoder_out.device)
            [hypotheses], [self._decoded] = self.decode.step(encoder_out[None], length, [self._decoded])
        self._hypothesis = hypotheses[0]
        self._log_probs.append(log_probs)
        said = (log_probs.argmax(dim=-1) != BLANK_ID).nonzero()
        self._silence = len(log_probs) - 1 - int(said[-1]) if len(said) else self._silence + len(log_probs)
        is_said = bool(self._placed.tokens or self._hypothesis.tokens)
        if self.endpoint is not None and self._silence >= self.endpoint and is_said:
            return self.settle()
        return self._captions()

    def settle(self) -> Captions:
        """End a stretch of speech: all words of the best hypothesis are final."""
        self._hypothesis, self._decoded = self.decode.settle(self._decoded)
        words = self._words(self._timed(), self._num_frames)
        self._forget(0, self._num_frames)
        self._placed = self._hypothesis = NO_TOKENS
        return Captions(words, [], is_end=True)

    def _captions(self) -> Captions:
        """Tell final words from partial ones, and forget what is final."""
        timed = self._timed()
        if not self._hypothesis.tokens:
            # A transducer may write what was said a chunk later.
            self._forget(0, self._num_frames - len(self._log_probs[-1]))
            return Captions([], self._words(timed, self._num_frames))
        num_placed = len(self._placed.tokens)
        num_agreed = num_placed + self._hypothesis.num_final
        num_final = max(self._num_before_last_word(timed.tokens[:num_agreed]), self._num_settled(timed))
        num_kept = max(num_placed, num_final, self._num_old(timed, num_agreed))
        frames = timed.frames or []
        final, partial = _part(timed, 0, num_final), _part(timed, num_final, len(timed.tokens))
        begin = frames[num_final].start if partial.tokens else self._num_frames
        captions = Captions(self._words(final, begin), self._words(partial, self._num_frames))
        self._placed = _part(timed, num_final, num_kept)
        if num_kept > num_placed:
            self._decoded = self.decode.decide(self._decoded, timed.tokens[num_placed:num_kept])
            self._forget(num_kept - num_placed, frames[num_kept - 1].start + 1)
        self._forget(0, max(self._start, self._num_frames - self.long_word))
        return captions

    def _num_before_last_word(self, tokens: list[int]) -> int:
        """Number of tokens before the last word that has begun."""
        words = spell(tokens, self.recognizer.model.tokenizer.pieces)
        return words[-1].first if words else 0

    @property
    def _num_frames(self) -> int:
        """Number of frames up to the last."""
        return self._start + sum(map(len, self._log_probs))

    def _num_settled(self, timed: Hypothesis) -> int:
        """How many tokens are of words that were said so long ago that the best hypothesis decides them."""
        if self.settled is None:
            return 0
        latest = self._num_frames - self.settled
        ends = [span.end for span in timed.frames or []]
        words = spell(timed.tokens, self.recognizer.model.tokenizer.pieces)
        return max((word.first for word in words[1:] if ends[word.first - 1] <= latest), default=0)

    def _num_old(self, timed: Hypothesis, num_agreed: int) -> int:
        """How many tokens began so long ago that they are not aligned again."""
        latest = self._num_frames - self.long_word
        num_old = sum(span.start <= latest for span in timed.frames or [])
        return num_old if self.settled is not None else min(num_old, num_agreed)

    def joined(self, captions: Sequence[Captions]) -> Captions:
        """Join what several chunks added; without any, what is partial is as it was."""
        final = [word for each in captions for word in each.final]
        self._partial = captions[-1].partial if captions else self._partial
        return Captions(final, self._partial, any(each.is_end for each in captions))

    def _timed(self) -> Hypothesis:
        """The tokens that are not final with their frames, counted from the beginning of the stream."""
        hypothesis, log_probs = self._hypothesis, torch.cat(self._log_probs) if self._log_probs else None
        num_frames = 0 if log_probs is None else len(log_probs)
        if self.recognizer.frame_head.min_frames(hypothesis.tokens) > num_frames:
            # Another hypothesis of the beam is the best one now, and in it the words before were said sooner.
            number = len(hypothesis.tokens)
            hypothesis = hypothesis._replace(frames=[Span(0, num_frames)] * number, confidences=[0.0] * number)
        else:
            hypothesis = with_times(hypothesis, log_probs)
        return Hypothesis(
            self._placed.tokens + hypothesis.tokens,
            hypothesis.score,
            [
                *(self._placed.frames or []),
                *(Span(self._start + span.start, self._start + span.end) for span in hypothesis.frames or []),
            ],
            [*(self._placed.confidences or []), *(hypothesis.confidences or [])],
        )

    def _words(self, hypothesis: Hypothesis, num_frames: int) -> list[Word]:
        """The words of a hypothesis whose last one ends by frame `num_frames`."""
        return list(self.recognizer.words(hypothesis, 0.0, num_frames * self.recognizer.model.frame_seconds))

    def _forget(self, num_tokens: int, num_frames: int) -> None:
        """Leave out tokens, and the frames up to `num_frames`, which lie before those that come."""
        if num_tokens:
            self._decoded = self.decode.forget(self._decoded, num_tokens)
        rest = torch.cat(self._log_probs)[num_frames - self._start :].clone() if self._log_probs else torch.zeros(0)
        self._log_probs = [rest] if len(rest) else []
        self._start = num_frames


def _part(hypothesis: Hypothesis, first: int, behind: int) -> Hypothesis:
    """The tokens from `first` to the one before `behind`, with their frames and confidences."""
    part = slice(first, behind)
    frames, confidences = hypothesis.frames or [], hypothesis.confidences or []
    return Hypothesis(hypothesis.tokens[part], hypothesis.score, frames[part], confidences[part])


def advance(streams: Sequence[CachedStream]) -> list[Captions]:
    """Go on with streams of one recogniser as far as they have chunks, each step as one batch.

    Whoever joins or leaves changes nothing for the others. Streams that end are settled.
    """
    captions: list[list[Captions]] = [[] for _ in streams]
    while ready := [number for number, stream in enumerate(streams) if stream.is_ready]:
        alike = [number for number in ready if streams[number].shape == streams[ready[0]].shape]
        for number, encoder_out in zip(alike, _step([streams[number] for number in alike]), strict=True):
            captions[number].append(streams[number].decode_chunk(encoder_out))
    for stream, added in zip(streams, captions, strict=True):
        if stream.at_end:
            added.append(stream.settle())
    return [stream.joined(added) for stream, added in zip(streams, captions, strict=True)]


@torch.inference_mode()
def _step(streams: Sequence[CachedStream]) -> list[Tensor]:
    """Run the encoder over the next chunk of each; what it gives of it, (T', D)."""
    recognizer = streams[0].recognizer
    seen = [stream.next_chunk() for stream in streams]
    device = recognizer.model.device
    lengths = torch.tensor([len(features) for features in seen], device=device)
    chunk, right = streams[0].chunk, streams[0].right
    features = with_room(nn.utils.rnn.pad_sequence(seen, batch_first=True), chunk, right)
    features = features.to(device)
    state = {name: torch.cat([stream.state[name] for stream in streams]) for name in streams[0].state}
    with recognizer.encoder.autocast():
        encoded, state = streams[0].encoder.step(features, lengths, state, recognizer.model.head.taps, right)
    for number, stream in enumerate(streams):
        stream.state = {name: rows[number : number + 1].clone() for name, rows in state.items()}
    return [out[:length] for out, length in zip(encoded.out, encoded.lengths.tolist(), strict=True)]


def with_room(features: Tensor, chunk: int, right: int) -> Tensor:
    """Pad feature frames (B, T, F) of chunks so that a step finds behind them the `right` that are only seen."""
    return F.pad(features, (0, 0, 0, min(features.shape[1], chunk) + right - features.shape[1]))


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
        settled = math.inf if self.at_end else heard - LOOK_BACK_SETTLED_SECONDS
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
