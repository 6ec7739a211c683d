"""Speech recognition: train a Conformer-CTC, transcribe audio, report word error rates.

    >>> import asr
    >>> recognizer = asr.load_recognizer("runs/mini")  # a run folder, a bundle, a .ckpt or hf://OWNER/NAME
    >>> transcript = recognizer.transcribe("recording.wav")
    >>> [word.text for word in transcript.words] == transcript.text.split()
    True
    >>> samples, sample_rate = soundfile.read("recording.wav")
    >>> [again] = recognizer.transcribe([samples], sample_rate=sample_rate)  # several at once, as a list
    >>> again.text == transcript.text
    True
    >>> stream = asr.Stream(recognizer)
    >>> final, partial, _ = stream.feed(samples)  # at stream.sample_rate, in pieces of any length
    >>> more, _, _ = stream.finish()

Errors that the caller can mend are `InputError`, with a message of one line; `AudioError` is one about a recording.

What lies here are the contract (`interfaces`, `errors`, `lengths`, `build`) and the commands, python -m asr.<command>.
The folders, from the lowest layer up; each imports only from those above it:

    system/          files, processes
    settings/        what settings must be, and where the files of conf/ are
    storage/         files by path or URL: object stores, their cache on a local disk
    audio/           files to waveforms (S,)
    text/            normalised text, words of tokens, a stranger's text on one line, numbers as they are printed
    language_model/  n-grams: made, mixed, checked, asked
    kernels/         hand-tuned operations, each beside its plain form
    web/             what pages are made of
    augment/ features/ tokenizer/ encoder/ head/ decode/ optimizer/ schedule/
                     the components: asr/<group>/<name>.py is configured by conf/<group>/<name>.yaml
    token_model/     a component, too: neural language models over tokens, of the encoder's layers
    data/            manifest lines to utterances, examples, batches (the padding boundary) and each epoch's plan
    recognition/     the model (encoder and head), and with a decoder the recogniser: audio to transcripts
    evaluation/      word errors, how sure they are, what they are made of
    onnx/            runs exported programs
    checkpoint/      a recogniser on the disk, as asr writes it
    interchange/     models of other toolkits and from hubs, in and out
    run/             a run folder, what a run starts from, how it is resumed
    publishing/      models written for others: ONNX programs, a page for the browser, a folder for a hub
    bulk/            jobs of many hours: parts, failures, engines
    cli/             what commands share
    diagnosis/       what is wrong with a corpus, or with a plan to train on it
    report/          pages that a person reads
    training/        Lightning: the step, the loaders, checkpoints, many processes
    server/          the page, the HTTP endpoint, and the WebSocket for speech while it is spoken
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from asr.errors import AudioError, InputError

if TYPE_CHECKING:
    from asr.interchange.models import load_recognizer
    from asr.recognition.captions import Captions
    from asr.recognition.recognizer import Recognizer
    from asr.recognition.streaming import Stream
    from asr.recognition.transcript import Alternative, Transcript, Word

__all__ = [
    "Alternative",
    "AudioError",
    "Captions",
    "InputError",
    "Recognizer",
    "Stream",
    "Transcript",
    "Word",
    "__version__",
    "load_recognizer",
]

MODULES = {
    "Alternative": "asr.recognition.transcript",
    "Captions": "asr.recognition.captions",
    "Recognizer": "asr.recognition.recognizer",
    "Stream": "asr.recognition.streaming",
    "Transcript": "asr.recognition.transcript",
    "Word": "asr.recognition.transcript",
    "load_recognizer": "asr.interchange.models",
}

try:
    __version__ = version("asr")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "unknown"


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a name when it is first asked for: torch takes seconds."""
        if name not in MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(MODULES[name]), name)
