"""Streams of models whose encoder and decoder carry their states from chunk to chunk.

A word becomes final in one of five cases:

* All hypotheses of the decoder contain the word and the beginning of the next word.
* The best hypothesis contains the word, and the word ended more than `settled_seconds` ago.
* Silence of `endpoint_seconds` ends the segment; all words of the best hypothesis then become final.
* All hypotheses contain the piece <EOU> after the word, which ends the segment. Words after it become final in a later
  chunk, so that the final words of a chunk end where `is_end` says.
* `flush` ends the segment.
"""

from collections.abc import Sequence
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asr.base.text.hidden_pieces import END_OF_BACKCHANNEL, END_OF_UTTERANCE
from asr.base.text.words import spell
from asr.core.data.labels import LANGUAGE
from asr.core.recognition.captions import DEFAULT, Captions, StreamSettings, of_whole_characters
from asr.core.recognition.feature_stream import Remainder, stream_features
from asr.core.recognition.latency import latency_frames, listed
from asr.core.recognition.pieces import joined_rows
from asr.core.recognition.recognizer import Recognizer, without_nan
from asr.core.recognition.stream_clock import NO_TOKENS, StreamClock, joined, split
from asr.core.recognition.transcript import Word
from asr.errors import InputError
from asr.interfaces import NO_BIASING, Biasing, Hypothesis, StreamingDecoder, StreamingEncoder

FramesOrNone = TypeVar("FramesOrNone", int, int | None)
LONG_WORD_SECONDS = 10.0  # tokens of an unfinished word are no longer realigned after this time


class CachedStream:
    """A stream that continues from cached states of encoder and decoder.

    Nothing is computed twice except the right context, and memory does not grow.

    Args:
        recognizer: a recogniser with a streaming encoder and decoder (`asr.core.recognition.streaming.why_not` returns
        ""). settings: settings of the stream.
        biasing: hotwords of the stream.
    """

    def __init__(
        self, recognizer: Recognizer, settings: StreamSettings = DEFAULT, biasing: Biasing = NO_BIASING
    ) -> None:
        model = recognizer.model
        self.recognizer = recognizer
        self.encoder = cast(StreamingEncoder, model.encoder)
        self.decode = cast(StreamingDecoder, recognizer.decode)
        encoder, frame_seconds = self.encoder, model.frame_seconds
        chunk = _frames(settings.chunk_seconds, frame_seconds, least=1, default=encoder.chunk_frames)
        if settings.latency is not None:
            if settings.chunk_seconds is not None:
                must = "a stream must have a latency or chunk_seconds, not both"
                raise InputError(f"{must}; got {settings.latency:g} and {settings.chunk_seconds:g}. Leave one out.")
            chunk = latency_frames(model, settings.latency)
        if chunk is None:
            raise InputError("chunk_seconds must be given for a model whose encoder.chunk_frames is null; got none.")
        if encoder.chunk_choices and chunk not in (*encoder.chunk_choices, encoder.chunk_frames):
            must = f"chunk_seconds must be {listed(model)} for this model"
            raise InputError(f"{must}; got {chunk * frame_seconds:g}.")
        if chunk % encoder.chunk_multiple:
            must = f"chunk_seconds must be a multiple of {encoder.chunk_multiple * frame_seconds:g} for this model"
            raise InputError(f"{must}; got {chunk * frame_seconds:g}.")
        left = _frames(settings.left_seconds, frame_seconds, least=0, default=encoder.left_frames)
        right = _frames(settings.right_seconds, frame_seconds, least=0, default=encoder.right_frames)
        self.chunk = chunk * self.encoder.stride  # feature frames
        contexts = {"left": (left, encoder.left_frames), "right": (right, encoder.right_frames)}
        for side, (given, frames) in contexts.items():
            if model.is_program and given != frames:
                must = f"{side}_seconds is fixed when a model is exported ({frames} encoder frames)"
                raise InputError(f"{must}; got {given}. Leave it out.")
        if encoder.is_right_fixed and right != encoder.right_frames:
            must = f"right_seconds must be {encoder.right_frames * frame_seconds:g} for this model"
            raise InputError(f"{must}, whose first layers need them; got {right * frame_seconds:g}. Leave it out.")
        self.right = right * self.encoder.stride  # feature frames of right context; they also begin the next chunk
        self.chunk_seconds, self.right_seconds = chunk * model.frame_seconds, right * model.frame_seconds
        self.endpoint = _frames(settings.endpoint_seconds, frame_seconds, least=1, default=None)
        self.settled = _frames(settings.settled_seconds, frame_seconds, least=1, default=None)
        self.long_word = max(1, round(LONG_WORD_SECONDS / frame_seconds))
        self.at_end = self.flushes = False
        self.shape = self.chunk, left, right  # streams with equal shapes form one batch
        self.state = self.encoder.initial_state(1, left)
        own = {} if settings.language is None else {LANGUAGE: settings.language}
        self.conditions = model.labels.conditions([own])
        self._remainder = Remainder()
        self._unread = encoder.stride - encoder.first_frames  # frames at the start of the buffer, read by no network
        self._features = torch.zeros(self._unread, model.features.dim)  # features of the incomplete next chunk, (T, F)
        self.decoded = self.decode.initial_state(*([biasing] if biasing.lists else []))
        self._placed = NO_TOKENS  # first tokens of a long unfinished word; the decoder's state no longer contains them
        self._hypothesis = NO_TOKENS  # tokens after `_placed`
        self.clock = StreamClock(recognizer)
        self._partial: list[Word] = []
        self._in_segment = False  # whether the present segment has a final word

    def feed(self, waveform: Tensor) -> Captions:
        """Recognise more of the waveform, (S,)."""
        self.hear(waveform)
        return advance([self])[0]

    def finish(self) -> Captions:
        """Recognise the remaining audio and end the stream."""
        self.hear(torch.zeros(0), at_end=True)
        return advance([self])[0]

    def hear(self, waveform: Tensor, at_end: bool = False) -> None:
        """Buffer more of the waveform as features; `advance` recognises the complete chunks."""
        features, remainder = self.recognizer.model.features, self._remainder
        frames, self._remainder = stream_features(features, waveform, remainder, at_end)
        self._features = torch.cat([self._features, frames])
        self.at_end = at_end

    def flush(self) -> None:
        """End the segment after the complete chunks, with the next call of `advance`."""
        self.flushes = True

    def replace_hotwords(self, biasing: Biasing) -> None:
        """Replace the hotwords; the new ones apply from the next word on."""
        if self.decode.compile_hotwords is not None:
            self.decoded = self.decode.replace_hotwords(self.decoded, biasing)

    @property
    def num_wanted(self) -> int:
        """Number of samples that the next chunk still lacks."""
        features, remainder = self.recognizer.model.features, self._remainder
        missing = self.chunk + self.right - len(self._features)
        last = remainder.frames + missing - 1  # last frame of the right context, counted from the start of `remainder`
        return max(0, last * features.hop + features.samples_ahead - len(remainder.samples))

    @property
    def is_ready(self) -> bool:
        """Whether a chunk is complete."""
        return len(self._features) >= (self._unread + 1 if self.at_end else self.chunk + self.right)

    def next_chunk(self) -> Tensor:
        """Return the next chunk with its right context, and remove the chunk from the buffer."""
        seen, self._features = self._features[: self.chunk + self.right], self._features[self.chunk :].clone()
        self._unread = 0
        return seen

    def take(self, hypotheses: list[Hypothesis], state: object, num_frames: int, log_probs: Tensor | None) -> Captions:
        """Take the decoder's result for the next chunk.

        Args:
            hypotheses: hypotheses of the stream so far, best first.
            state: the decoder's state after the chunk.
            num_frames: encoder frames of the chunk.
            log_probs: output of the frame head for the chunk, (T', V); None: the model has none.
        """
        self._hypothesis, self.decoded = hypotheses[0], state
        self.clock.advance(num_frames, log_probs, self._hypothesis)
        has_tokens = bool(self._placed.tokens or self._hypothesis.tokens)
        if self.endpoint is not None and self.clock.silence >= self.endpoint and has_tokens:
            return self.settle()
        return self._captions()

    def settle(self) -> Captions:
        """End a segment: all words of the best hypothesis are final."""
        self._hypothesis, self.decoded = self.decode.settle(self.decoded)
        tokens = self._open_tokens()
        words = self.clock.words(tokens, self.clock.now)
        self.clock.forget(self.clock.now)
        self._placed = self._hypothesis = NO_TOKENS
        self._in_segment = False
        return Captions(words, [], True, self._has(END_OF_BACKCHANNEL, tokens))

    def _captions(self) -> Captions:
        """Split the words into final and provisional ones, and drop the final ones from the state."""
        tokens, clock = self._open_tokens(), self.clock
        if not self._hypothesis.tokens:
            # The log_probs of the last chunk are not dropped: a transducer may emit its tokens only in the next chunk.
            clock.forget(clock.chunk_begin)
            return Captions([], of_whole_characters(clock.words(tokens, clock.now)))
        num_placed = len(self._placed.tokens)
        num_agreed = num_placed + self._hypothesis.num_final
        num_final = self._num_ended(tokens.tokens[:num_agreed])
        is_end = num_final > 0
        if not is_end:
            num_final = max(self._num_before_last_word(tokens.tokens[:num_agreed]), self._num_settled(tokens))
        num_placed_now = max(num_placed, num_final, self._num_old(tokens, num_agreed))
        final, self._placed, others = split(tokens, num_final, num_placed_now)
        partial = joined([self._placed, others])
        begin = partial.frames[0].start if partial.frames else clock.now
        if final.frames:  # a transducer may emit the last final and the first provisional token in one frame
            begin = max(begin, final.frames[-1].start + 1)
        words = clock.words(final, begin)
        self._in_segment |= bool(words)
        is_end &= self._in_segment  # not if <EOU> comes after a silence that has ended the segment
        self._in_segment &= not is_end
        is_backchannel = self._has(END_OF_BACKCHANNEL, final)
        captions = Captions(words, of_whole_characters(clock.words(partial, clock.now)), is_end, is_backchannel)
        if num_placed_now > num_placed:
            placed = split(tokens, num_placed, num_placed_now)[1]
            self.decoded = self.decode.decide(self.decoded, placed.tokens)
            self.decoded = self.decode.forget(self.decoded, len(placed.tokens))
            # All frames of the last token are dropped, otherwise the next token would be aligned to them.
            start, end = (placed.frames or [])[-1]
            clock.forget(max(start + 1, min(end, others.frames[0].start if others.frames else clock.now)))
        clock.forget(max(clock.kept_from, clock.now - self.long_word))
        return captions

    def _open_tokens(self) -> Hypothesis:
        """Return the tokens that are not final, with frames on the stream's clock."""
        return joined([self._placed, self.clock.placed(self._hypothesis)])

    def _has(self, name: str, tokens: Hypothesis) -> bool:
        """Whether tokens contain the hidden piece of this name."""
        names = self.recognizer.model.tokenizer.names
        return any(names[token] == name for token in tokens.tokens)

    def _num_ended(self, tokens: list[int]) -> int:
        """Count the tokens up to the first <EOU>; 0: there is none."""
        names = self.recognizer.model.tokenizer.names
        return next((number for number, token in enumerate(tokens, 1) if names[token] == END_OF_UTTERANCE), 0)

    def _num_before_last_word(self, tokens: list[int]) -> int:
        """Count the tokens before the last word."""
        words = spell(tokens, self.recognizer.model.tokenizer.pieces)
        return words[-1].first if words else 0

    def _num_settled(self, tokens: Hypothesis) -> int:
        """Count the tokens of words that ended more than `settled_seconds` ago."""
        if self.settled is None:
            return 0
        latest = self.clock.now - self.settled
        ends = [span.end for span in tokens.frames or []]
        words = spell(tokens.tokens, self.recognizer.model.tokenizer.pieces)
        return max((word.first for word in words[1:] if ends[word.first - 1] <= latest), default=0)

    def _num_old(self, tokens: Hypothesis, num_agreed: int) -> int:
        """Count the tokens that began more than LONG_WORD_SECONDS ago; these tokens are no longer realigned."""
        latest = self.clock.now - self.long_word
        num_old = sum(span.start <= latest for span in tokens.frames or [])
        return num_old if self.settled is not None else min(num_old, num_agreed)

    def joined(self, captions: Sequence[Captions]) -> Captions:
        """Join the captions of several chunks; without captions, the provisional words do not change."""
        final = [word for each in captions for word in each.final]
        self._partial = captions[-1].partial if captions else self._partial
        is_end, is_backchannel = any(each.is_end for each in captions), any(each.is_backchannel for each in captions)
        return Captions(final, self._partial, is_end, is_backchannel)


def advance(streams: Sequence[CachedStream]) -> list[Captions]:
    """Recognise the complete chunks of several streams, in batches of streams with equal shapes.

    All streams use one recogniser. The captions of a stream do not depend on the other streams. All words of a stream
    that has ended or is flushed are final.
    """
    captions: list[list[Captions]] = [[] for _ in streams]
    while ready := [number for number, stream in enumerate(streams) if stream.is_ready]:
        alike = [number for number in ready if streams[number].shape == streams[ready[0]].shape]
        together = [streams[number] for number in alike]
        for number, caption in zip(alike, decode_chunks(together, encode_chunks(together)), strict=True):
            captions[number].append(caption)
    for stream, added in zip(streams, captions, strict=True):
        if stream.at_end or stream.flushes:
            added.append(stream.settle())
            stream.flushes = False
    return [stream.joined(added) for stream, added in zip(streams, captions, strict=True)]


@torch.inference_mode()
def encode_chunks(streams: Sequence[CachedStream]) -> list[Tensor]:
    """Encode the next chunk of each stream; return the encoder_out (T', D) of each stream."""
    recognizer = streams[0].recognizer
    seen = [stream.next_chunk() for stream in streams]
    device = recognizer.model.device
    lengths = torch.tensor([len(features) for features in seen], device=device)
    chunk, right = streams[0].chunk, streams[0].right
    features = with_room(nn.utils.rnn.pad_sequence(seen, batch_first=True), chunk, right)
    features = features.to(device)
    state = {name: torch.cat([stream.state[name] for stream in streams]) for name in streams[0].state}
    names = recognizer.model.labels.names
    conditions = {name: torch.cat([stream.conditions[name] for stream in streams]).to(device) for name in names}
    with recognizer.recording_encoder.autocast():
        encoded, state = streams[0].encoder.step(features, lengths, state, recognizer.model.head.taps, right)
        encoded = recognizer.model.prompted(encoded._replace(conditions=conditions))
    for number, stream in enumerate(streams):
        stream.state = {name: rows[number : number + 1].clone() for name, rows in state.items()}
    return [out[:length] for out, length in zip(encoded.out, encoded.lengths.tolist(), strict=True)]


@torch.inference_mode()
def decode_chunks(streams: Sequence[CachedStream], rows: Sequence[Tensor]) -> list[Captions]:
    """Decode the next chunk of each stream together.

    Args:
        streams: streams of one recogniser.
        rows: encoder_out of each stream's chunk, (T', D).

    Raises:
        AudioError: the network's output contains NaN, which decoders would treat as silence.
    """
    recognizer = streams[0].recognizer
    encoded = joined_rows(rows)
    counts = encoded.frame_counts
    log_probs: list[Tensor | None] = [None] * len(rows)
    with recognizer.recording_encoder.autocast():
        frame_head = recognizer.model.head.frame_head
        if frame_head is not None:
            padded = without_nan(frame_head.log_probs(encoded.out))
            encoded = encoded._replace(log_probs=padded)
            log_probs = [row[:count] for row, count in zip(padded.cpu(), counts, strict=True)]
        else:
            without_nan(encoded.out)
        states = [stream.decoded for stream in streams]
        hypotheses, states = streams[0].decode.step(encoded, states)
    taken = zip(streams, hypotheses, states, counts, log_probs, strict=True)
    return [stream.take(*of_stream) for stream, *of_stream in taken]


def with_room(features: Tensor, chunk: int, right: int) -> Tensor:
    """Pad feature frames (B, T, F) so that `right` frames follow the chunk, as `StreamingEncoder.step` expects."""
    return F.pad(features, (0, 0, 0, min(features.shape[1], chunk) + right - features.shape[1]))


def _frames(seconds: float | None, frame_seconds: float, *, least: int, default: FramesOrNone) -> int | FramesOrNone:
    """Convert seconds to a number of encoder frames, at least `least`; None is converted to the default."""
    return default if seconds is None else max(least, round(seconds / frame_seconds))
