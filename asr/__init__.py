"""Speech recognition: train a Conformer-CTC, transcribe audio, report word error rates.

    >>> import asr
    >>> recognizer = asr.load_recognizer("runs/mini")  # a run folder, a bundle, a .ckpt or hf://OWNER/NAME
    >>> transcript = recognizer.transcribe("recording.wav")
    >>> [word.text for word in transcript.words] == transcript.text.split()
    True
    >>> samples, sample_rate = soundfile.read("recording.wav")
    >>> [again] = recognizer.transcribe([samples], sample_rate=sample_rate)  # a list of recordings gives a list
    >>> again.text == transcript.text
    True
    >>> stream = asr.Stream(recognizer)
    >>> final, partial, *_ = stream.feed(samples)  # at stream.sample_rate; any number of samples per call
    >>> more, *_ = stream.finish()

Errors that the caller can correct are `InputError`, with a message of one line; `AudioError` concerns one recording.

    load_recognizer  load a model: a run folder, a bundle, a .ckpt, or hf://OWNER/NAME
    Recognizer       transcribe(recordings): files, arrays, several of them; to(device)
    Transcript       text, words, confidence, duration, alternatives (n-best)
    Word             text, start and end in seconds, confidence
    Alternative      text and score of a hypothesis
    Stream           recognise speech while it is spoken: feed(samples), finish()
    Captions         final and provisional words of a stream

`help(asr.Recognizer.transcribe)` has the parameters. `asr` on the command line lists the commands.
"""

# The modules of this folder are the contract (`interfaces`, `errors`, `lengths`) and the commands, python -m
# asr.<command>. Everything else stands on one of four floors; the docstring of a floor lists its folders:
#
#     base/        knows no speech model: files, audio, texts, settings, fast operations
#     components/  what a YAML file chooses, one file each
#     core/        a manifest's line to a loss, an audio file to a text
#     apps/        what commands do beyond that; core works without it
#
# docs/guide/design.md follows a line through these files, and has the rules of what imports what.

from typing import TYPE_CHECKING

from asr.errors import AudioError as AudioError
from asr.errors import InputError as InputError

if TYPE_CHECKING:
    from asr.core.hub.models import load_recognizer as load_recognizer
    from asr.core.recognition.captions import Captions as Captions
    from asr.core.recognition.recognizer import Recognizer as Recognizer
    from asr.core.recognition.streaming import Stream as Stream
    from asr.core.recognition.transcript import Alternative as Alternative
    from asr.core.recognition.transcript import Transcript as Transcript
    from asr.core.recognition.transcript import Word as Word

MODULES = {
    "Alternative": "asr.core.recognition.transcript",
    "Captions": "asr.core.recognition.captions",
    "Recognizer": "asr.core.recognition.recognizer",
    "Stream": "asr.core.recognition.streaming",
    "Transcript": "asr.core.recognition.transcript",
    "Word": "asr.core.recognition.transcript",
    "load_recognizer": "asr.core.hub.models",
}

__version__ = "0.1.0"  # pyproject.toml reads it, without importing the package


def __dir__() -> list[str]:
    return sorted([*MODULES, "AudioError", "InputError", "__version__"])


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name on first access, because importing torch takes seconds."""
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(MODULES[name]), name)
