"""Cut recordings of any length, in bounded memory, into segments that are decoded separately.

There are two methods. `in_chunks` encodes overlapping chunks and stitches them, so that the encoder has context at each
cut. `at_silences` cuts the audio at silences and encodes each segment as an utterance, as in training.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from asr.base.audio.silence import cut_at_silences
from asr.core.recognition.chunks import Chunk, ChunkBounds, cut_at_pauses, cut_chunks, stitch


class Segment(NamedTuple):
    """The encoder's output for a part of a recording.

    Args:
        start: start of the segment in the recording, in seconds.
        encoder_out: (T', D).
    """

    start: float
    encoder_out: Tensor


Segments = Iterator[Segment]
# Maps waveforms (S,) to their encoder_out (T', D), in order; T' is 0 for a waveform without speech.
Encode = Callable[[Iterable[Tensor]], Iterator[Tensor]]
Segmenter = Callable[[Iterable[Tensor], Encode, int, int, ChunkBounds], Segments]

SEGMENT_CHUNKS = 2  # maximum length of a segment, as a number of chunks


def in_chunks(
    blocks: Iterable[Tensor],
    encode: Encode,
    sample_rate: int,
    frame_samples: int,
    bounds: ChunkBounds,
    pause: Callable[[Tensor], int],
) -> Segments:
    """Encode overlapping chunks and stitch them; segments end at pauses.

    Args:
        blocks: consecutive parts of the recording's waveform, (S,) each.
        encode: function that encodes waveforms (see `Encode`).
        sample_rate: sample rate of the waveform, in Hz.
        frame_samples: samples per encoder frame.
        bounds: sizes of the chunks.
        pause: returns the frame at which to cut encoder_out (T', D).
    """
    chunk_samples, context_samples = bounds.samples(sample_rate, frame_samples)
    pending: list[Chunk] = []  # chunks sent to the encoder, without their waveforms

    def waveforms() -> Iterator[Tensor]:
        for chunk in cut_chunks(blocks, chunk_samples, context_samples):
            pending.append(chunk._replace(waveform=chunk.waveform[:0]))
            yield chunk.waveform

    def placed() -> Iterator[tuple[int, int, Tensor]]:
        for encoder_out in encode(waveforms()):
            chunk = pending.pop(0)
            yield chunk.start // frame_samples, chunk.keep // frame_samples, encoder_out

    max_frames = SEGMENT_CHUNKS * (chunk_samples // frame_samples)
    for frame, encoder_out in cut_at_pauses(stitch(placed()), max_frames, pause):
        yield Segment(frame * frame_samples / sample_rate, encoder_out)


def at_silences(
    blocks: Iterable[Tensor], encode: Encode, sample_rate: int, frame_samples: int, bounds: ChunkBounds
) -> Segments:
    """Encode the audio between silences as separate utterances.

    The arguments are those of `in_chunks`. The contexts in `bounds` are not used, because the segments do not overlap.
    """
    starts: list[int] = []

    def waveforms() -> Iterator[Tensor]:
        for start, waveform in cut_at_silences(iter(blocks), sample_rate, max_seconds=bounds.chunk_seconds):
            starts.append(start)
            yield waveform

    for encoder_out in encode(waveforms()):
        yield Segment(starts.pop(0) / sample_rate, encoder_out)
