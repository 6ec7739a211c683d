"""The clock of a stream: encoder frames, counted from the stream's beginning.

Chunks, outputs of the frame head and tokens have their places on this clock. Only the times of words are seconds.

    0              `kept_from`         `chunk_begin`        `now`
    |- forgotten -|-- log_probs ------|-- last chunk ------|
       final words   tokens that are not final
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.timing import with_times
from asr.core.recognition.transcript import Word
from asr.interfaces import BLANK_ID, Hypothesis, Span

NO_TOKENS = Hypothesis([], 0.0, [], [])


class StreamClock:
    """The decoded frames of a stream, and the places of tokens and words in them.

    Args:
        recognizer: recogniser of the stream.
    """

    def __init__(self, recognizer: Recognizer) -> None:
        self._recognizer = recognizer
        self.now = 0  # number of frames decoded so far
        self.chunk_begin = 0  # first frame of the last chunk
        self.kept_from = 0  # first frame of `log_probs`; earlier ones were dropped
        self.log_probs: list[Tensor] = []  # outputs of the frame head, if any, (T', V) each
        self._speech_end = 0  # end of the last frame that is not silent

    def advance(self, num_frames: int, log_probs: Tensor | None, hypothesis: Hypothesis) -> None:
        """Add a chunk.

        Args:
            num_frames: frames of the chunk.
            log_probs: output of the frame head for the chunk, (T', V); None: the model has none.
            hypothesis: best hypothesis after the chunk, whose tokens show speech where there is no frame head.
        """
        self.chunk_begin, self.now = self.now, self.now + num_frames
        if log_probs is None:
            self._speech_end = max([self._speech_end, *(span.end for span in hypothesis.frames or [])])
            return
        self.log_probs.append(log_probs)
        speech = (log_probs.argmax(dim=-1) != BLANK_ID).nonzero()
        if len(speech):
            self._speech_end = self.chunk_begin + int(speech[-1]) + 1

    @property
    def silence(self) -> int:
        """Number of silent frames at the end: blanks or, without a frame head, frames after the last token."""
        return max(0, self.now - self._speech_end)

    def forget(self, frame: int) -> None:
        """Drop the outputs of the frame head before a frame."""
        rest = torch.cat(self.log_probs)[frame - self.kept_from :].clone() if self.log_probs else torch.zeros(0)
        self.log_probs = [rest] if len(rest) else []
        self.kept_from = frame

    def placed(self, hypothesis: Hypothesis) -> Hypothesis:
        """Return a hypothesis with frames on this clock and confidences, which the frame head gives if none are set."""
        if hypothesis.frames is not None and hypothesis.confidences is not None:
            return hypothesis
        num_frames = sum(map(len, self.log_probs))
        if self._recognizer.frame_head.min_frames(hypothesis.tokens) > num_frames:
            # The best hypothesis has changed, and the first words of the new one are in frames that were dropped. The
            # new hypothesis cannot be aligned, so each token gets all frames and confidence 0.
            number = len(hypothesis.tokens)
            hypothesis = hypothesis._replace(frames=[Span(0, num_frames)] * number, confidences=[0.0] * number)
        else:
            hypothesis = with_times(hypothesis, lambda: torch.cat(self.log_probs))
        frames = [Span(self.kept_from + span.start, self.kept_from + span.end) for span in hypothesis.frames or []]
        return hypothesis._replace(frames=frames, confidences=hypothesis.confidences or [])

    def words(self, placed: Hypothesis, end: int) -> list[Word]:
        """Return the words of a hypothesis with frames on this clock; the last one ends no later than frame `end`."""
        return list(self._recognizer.words(placed, 0.0, end * self._recognizer.model.frame_seconds))


def joined(placed: Sequence[Hypothesis]) -> Hypothesis:
    """Join hypotheses with frames on one clock, in order; the score is that of the last."""
    tokens, frames, confidences = (
        [value for each in placed for value in values(each)]
        for values in (lambda each: each.tokens, lambda each: each.frames or [], lambda each: each.confidences or [])
    )
    return placed[-1]._replace(tokens=tokens, frames=frames, confidences=confidences)


def split(placed: Hypothesis, *numbers: int) -> list[Hypothesis]:
    """Split a hypothesis after these numbers of its tokens, which must not fall."""
    frames, confidences = placed.frames or [], placed.confidences or []
    parts = (slice(first, end) for first, end in zip([0, *numbers], [*numbers, len(placed.tokens)], strict=True))
    return [
        placed._replace(tokens=placed.tokens[part], frames=frames[part], confidences=confidences[part])
        for part in parts
    ]
