"""Command-line arguments MODEL and AUDIO; their defaults are the model and the test set of `make demo`."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.base.audio.find import find_audio
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.recognition.recordings import whole_file

MODEL, AUDIO = "runs/mini", "data/mini/test.jsonl"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the positional arguments MODEL and AUDIO to a parser."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=_existing_path,
        default=MODEL,
        help=f"run folder, bundle or .ckpt (default: {MODEL})",
    )
    parser.add_argument(
        "audio",
        metavar="AUDIO",
        nargs="*",
        default=[AUDIO],
        help=f"audio files, folders, or manifests with texts (default: {AUDIO})",
    )


def _existing_path(model: str) -> str:
    if not Path(model).exists():
        raise argparse.ArgumentTypeError(
            f"MODEL must exist; {model} does not. Run make demo to train {MODEL}, or name another model."
        )
    return model


def read_utterances(paths: Iterable[str]) -> Iterator[Utterance]:
    """Yield the utterances of the manifests in `paths`, and each other audio file as one utterance."""
    for path in paths:
        if path.endswith(".jsonl"):
            yield from read_manifest(path)
        else:
            yield from (whole_file(file, str(file)) for file in find_audio(path))
