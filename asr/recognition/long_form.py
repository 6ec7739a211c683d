"""From a recording of any length to segments that are decoded each by itself, in bounded memory.

Two ways, of one shape: windows that overlap and are stitched (nothing is cut that the net could not hear beyond), or
stretches between silences (each heard as an utterance of its own, as in training).
"""

from collections.abc import Callable, Iterable, Iterator

from torch import Tensor

from asr.recognition.silence import cut_at_silences
from asr.recognition.windows import Window, WindowBounds, cut_at_pauses, cut_windows, stitch

Segments = Iterator[tuple[float, Tensor]]  # second at which it begins, log_probs (T', V)
ToLogProbs = Callable[[Iterable[Tensor]], Iterator[Tensor]]  # waveforms (S,) to log_probs (T', V), in order
Segmenter = Callable[[Iterable[Tensor], ToLogProbs, int, int, WindowBounds], Segments]

SEGMENT_WINDOWS = 2  # windows that a segment is as long as, at most, before it has to be decoded


def in_windows(
    blocks: Iterable[Tensor], to_log_probs: ToLogProbs, sample_rate: int, hop: int, bounds: WindowBounds
) -> Segments:
    """Recognise in windows that overlap; a segment ends at a pause.

    Args:
        blocks: the recording's waveform (S,), in parts that follow each other.
        to_log_probs: the net.
        sample_rate: of the waveform, in Hz.
        hop: samples an encoder frame.
        bounds: how long windows are.
    """
    window, context = bounds.samples(sample_rate, hop)
    cut: list[Window] = []  # those on their way through the net

    def waveforms() -> Iterator[Tensor]:
        for one in cut_windows(blocks, window, context):
            cut.append(one._replace(waveform=one.waveform[:0]))
            yield one.waveform

    def placed() -> Iterator[tuple[int, int, Tensor]]:
        for log_probs in to_log_probs(waveforms()):
            one = cut.pop(0)
            yield one.start // hop, one.keep // hop, log_probs

    for frame, log_probs in cut_at_pauses(stitch(placed()), SEGMENT_WINDOWS * (window // hop)):
        yield frame * hop / sample_rate, log_probs


def at_silences(
    blocks: Iterable[Tensor], to_log_probs: ToLogProbs, sample_rate: int, hop: int, bounds: WindowBounds
) -> Segments:
    """Recognise from silence to silence; the arguments are those of `in_windows`, contexts are not needed."""
    starts: list[int] = []

    def waveforms() -> Iterator[Tensor]:
        for start, waveform in cut_at_silences(iter(blocks), sample_rate, max_seconds=bounds.window_seconds):
            starts.append(start)
            yield waveform

    for log_probs in to_log_probs(waveforms()):
        yield starts.pop(0) / sample_rate, log_probs


SEGMENTERS: dict[str, Segmenter] = {"windows": in_windows, "silence": at_silences}
