"""From a recording of any length to segments that are decoded each by itself, in bounded memory.

Two ways, of one shape: chunks that overlap and are stitched (nothing is cut that the net could not hear beyond), or
stretches between silences (each heard as an utterance of its own, as in training).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from torch import Tensor

from asr.recognition.chunks import Chunk, ChunkBounds, cut_at_pauses, cut_chunks, stitch
from asr.recognition.silence import cut_at_silences


class Segment(NamedTuple):
    """What the encoder gives of a stretch of a recording.

    Args:
        start: second at which it begins.
        encoder_out: (T', D).
    """

    start: float
    encoder_out: Tensor


Segments = Iterator[Segment]
# Waveforms (S,) to encoder_out (T', D), in order; T' is 0 where a waveform holds no speech.
Encode = Callable[[Iterable[Tensor]], Iterator[Tensor]]
Segmenter = Callable[[Iterable[Tensor], Encode, int, int, ChunkBounds], Segments]

SEGMENT_CHUNKS = 2  # chunks that a segment is as long as, at most, before it has to be decoded


def in_chunks(
    blocks: Iterable[Tensor],
    encode: Encode,
    sample_rate: int,
    frame_samples: int,
    bounds: ChunkBounds,
    pause: Callable[[Tensor], int],
) -> Segments:
    """Recognise in chunks that overlap; a segment ends at a pause.

    Args:
        blocks: the recording's waveform (S,), in parts that follow each other.
        encode: the encoder.
        sample_rate: of the waveform, in Hz.
        frame_samples: samples per encoder frame.
        bounds: how long chunks are.
        pause: finds the encoder frame of (T', D) to cut at.
    """
    chunk_samples, context_samples = bounds.samples(sample_rate, frame_samples)
    under_way: list[Chunk] = []  # without their waveforms

    def waveforms() -> Iterator[Tensor]:
        for chunk in cut_chunks(blocks, chunk_samples, context_samples):
            under_way.append(chunk._replace(waveform=chunk.waveform[:0]))
            yield chunk.waveform

    def placed() -> Iterator[tuple[int, int, Tensor]]:
        for encoder_out in encode(waveforms()):
            chunk = under_way.pop(0)
            yield chunk.start // frame_samples, chunk.keep // frame_samples, encoder_out

    max_frames = SEGMENT_CHUNKS * (chunk_samples // frame_samples)
    for frame, encoder_out in cut_at_pauses(stitch(placed()), max_frames, pause):
        yield Segment(frame * frame_samples / sample_rate, encoder_out)


def at_silences(
    blocks: Iterable[Tensor], encode: Encode, sample_rate: int, frame_samples: int, bounds: ChunkBounds
) -> Segments:
    """Recognise from silence to silence; the arguments are those of `in_chunks`, contexts are not needed."""
    starts: list[int] = []

    def waveforms() -> Iterator[Tensor]:
        for start, waveform in cut_at_silences(iter(blocks), sample_rate, max_seconds=bounds.chunk_seconds):
            starts.append(start)
            yield waveform

    for encoder_out in encode(waveforms()):
        yield Segment(starts.pop(0) / sample_rate, encoder_out)
