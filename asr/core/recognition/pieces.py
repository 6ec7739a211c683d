"""The segments of many utterances, in groups that are decoded together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.base.system.devices import sent
from asr.core.data.batch import Rejected
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.manifest import Utterance
from asr.core.recognition.long_form import Segment, Segments
from asr.errors import AudioError
from asr.interfaces import Encoded


class Piece(NamedTuple):
    """A segment of an utterance, or its end; the pieces of an utterance follow one another.

    Args:
        utterance: the utterance.
        segment: None: the end of the utterance.
        error: at the end: why the utterance cannot be read or encoded; None: all segments precede this piece.
    """

    utterance: Utterance
    segment: Segment | None
    error: AudioError | None = None


def pieces_of(
    results: Iterable[tuple[Utterance, Segments] | Rejected], failed: Callable[[Utterance], bool]
) -> Iterator[Piece]:
    """Yield the pieces of encoded utterances; a long recording is read and encoded while its pieces are taken.

    Args:
        results: encoded and unreadable utterances.
        failed: returns whether the decoding of an utterance has failed; its other segments are not encoded.
    """
    for result in results:
        if isinstance(result, Rejected):
            yield Piece(result.utterance, None, AudioError(result.reason))
            continue
        utterance, segments = result
        try:
            for segment in segments:
                yield Piece(utterance, segment)
                if failed(utterance):
                    break
        except AudioError as error:
            yield Piece(utterance, None, error)
        else:
            yield Piece(utterance, None)


def together(pieces: Iterable[Piece], bounds: BatchBounds, frame_seconds: float) -> Iterator[list[Piece]]:
    """Group consecutive pieces whose segments fit into a batch.

    Args:
        pieces: pieces in order.
        bounds: limits for a batch of segments.
        frame_seconds: seconds from one encoder frame to the next.
    """
    group: list[Piece] = []
    longest, number = 0.0, 0
    iterator = iter(pieces)
    while True:
        try:
            piece = next(iterator)
        except StopIteration:
            break
        except Exception:
            if group:
                yield group  # what precedes an error of the next batch is not lost
            raise
        if piece.segment is not None:
            seconds = (len(piece.segment.encoder_out) - 1) * frame_seconds  # the last frame may end after the audio
            longest, number = max(longest, seconds), number + 1
            if group and not bounds.hold(longest, number):
                yield group
                group, longest, number = [], seconds, 1
        group.append(piece)
        if number == 0 or len(group) >= 2 * bounds.max_utterances:  # each recording has a segment and an end
            yield group
            group, longest, number = [], 0.0, 0
    if group:
        yield group


def joined_rows(rows: Sequence[Tensor]) -> Encoded:
    """Pad the encoder's outputs for utterances or segments, (T', D) each, to a batch."""
    encoder_out = pad_sequence([*rows], batch_first=True)
    num_frames = tuple(map(len, rows))
    return Encoded(encoder_out, sent(torch.tensor(num_frames), encoder_out.device), {}, num_frames=num_frames)
