"""The engine that transcribes parts in this process, one after another."""

from collections.abc import Callable, Iterable, Iterator

from asr.bulk.parts import PartTask
from asr.bulk.transcription import PartResult, transcribe_part
from asr.recognition.inference import Inference
from asr.recognition.recognizer import Recognizer


def transcribe_locally(
    tasks: Iterable[PartTask],
    recognizer: Recognizer,
    inference: Inference,
    with_segments: bool,
    on_progress: Callable[[float], None],
) -> Iterator[PartResult]:
    """Yield the results of the parts in order; arguments as for `transcribe_part`."""
    for task in tasks:
        yield transcribe_part(recognizer, task, inference, with_segments, on_progress)
