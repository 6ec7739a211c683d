"""Speech recognition: train a Conformer-CTC, transcribe audio, report word error rates.

What lies here are the contract (`interfaces`, `errors`, `lengths`, `build`) and the commands, python -m asr.<command>.
The folders, from the lowest layer up; each imports only from those above it:

    system/          files, processes
    settings/        what settings must be, and where the files of conf/ are
    audio/           files to waveforms (S,)
    text/            normalised text, words of tokens, a stranger's text on one line, numbers as they are printed
    web/             what pages are made of
    language_model/  n-grams: made, checked, asked
    kernels/         hand-tuned operations, each beside its plain form
    augment/ features/ tokenizer/ encoder/ head/ decode/ optimizer/ schedule/
                     the components: asr/<group>/<name>.py is configured by conf/<group>/<name>.yaml
    data/            manifest lines to utterances, examples, batches (the padding boundary) and each epoch's plan
    recognition/     the model (encoder and head), and with a decoder the recogniser: audio to transcripts
    evaluation/      word errors, how sure they are, what they are made of
    checkpoint/      a recogniser on the disk, ours or another toolkit's
    run/             a run folder, what a run starts from, how it is resumed
    cli/             what commands share
    report/          pages that a person reads
    training/        Lightning: the step, the loaders, checkpoints, many processes
    server/          the page, the HTTP endpoint, and the WebSocket for speech while it is spoken
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asr.checkpoint.load import load_recognizer
    from asr.recognition.streaming import Stream

__all__ = ["Stream", "load_recognizer"]


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for: torch takes seconds."""
    if name == "load_recognizer":
        from asr.checkpoint.load import load_recognizer

        return load_recognizer
    if name == "Stream":
        from asr.recognition.streaming import Stream

        return Stream
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
