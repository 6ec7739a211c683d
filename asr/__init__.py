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
    >>> final, partial, _ = stream.feed(samples)  # at stream.sample_rate; any number of samples per call
    >>> more, _, _ = stream.finish()

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
# asr.<command>. Below them are four floors. base knows nothing of models. components are one file each,
# which see only base and the contract. core makes batches of data, weights of batches and texts of audio, and finds
# parts by their names alone. apps are what each command adds to core; core works without them, and an app imports no
# other app but apps/web. The folders are listed from the lowest layer up; each imports only from folders above it in
# this list:
#
#     base/system/          files, processes, devices
#     base/settings/        rules for settings, and the paths of the files in conf/
#     base/storage/         files by path or URL: object stores and their cache on the local disk
#     base/audio/           audio files to waveforms (S,)
#     base/text/            text normalisation, words of tokens, letters of languages, untrusted text, numbers
#     base/language_model/  n-gram models: estimation, checks, queries
#     base/kernels/         optimised operations, each beside a plain implementation
#     base/onnx/            files and sessions of ONNX programs
#     components/augment/ components/features/ components/tokenizer/ components/encoder/ components/prompt/
#     components/head/ components/decode/ components/adapter/ components/optimizer/ components/schedule/
#     components/logger/
#                           files of conf/<group>/ with `name: <name>` configure asr/components/<group>/<name>.py
#     components/token_model/    more components: neural language models over tokens, built from the encoder's layers
#     components/program/        encoders and heads that ONNX Runtime computes: an exported model
#     core/data/            manifest lines to utterances, examples, batches (which add the padding), each epoch's plan
#     core/recognition/     the model (encoder and head), and the recogniser (model and decoder): audio to transcripts
#     core/evaluation/      word errors, their confidence intervals and their kinds
#     core/checkpoint/      asr's own file format of a recogniser
#     core/hub/             models by a path or an address: download, and names of other toolkits' files
#     core/run/             a run folder, the initial weights of a run, resuming
#     core/objective/       what is trained (a recogniser, a language model), with its losses and validation: components
#                           too, asr/core/objective/<name>.py
#     core/cli/             code that commands share
#     core/training/        Lightning: the training step, data loaders, checkpoints, multiple processes
#     apps/web/             parts of HTML pages, of which the other apps make theirs
#     apps/bulk/            jobs of many hours: parts, failures, engines
#     apps/check/           what every component must do; asr.check and the tests check it
#     apps/convert/         import and export of models of other toolkits
#     apps/doctor/          problems of a corpus, and of a plan to train on it
#     apps/export/          models for other software: ONNX programs, a page for the browser, a folder for a hub
#     apps/finetune/        a user's data in one of several formats to manifests, and the settings of a short training
#     apps/language_models/ n-gram models with more words, or mixed; decoder settings tuned on dev sets
#     apps/report/          reports of trainings, evaluations and comparisons as HTML pages
#     apps/runs/            a table of runs
#     apps/serve/           the web page, the HTTP endpoint, and the WebSocket for live speech
#     apps/shards/          a corpus packed into tar files

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
