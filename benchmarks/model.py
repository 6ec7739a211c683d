"""What is benchmarked with a trained model: the one of `make demo` on its test set, unless others are given."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from asr.audio.load import find_audio
from asr.data.manifest import Utterance, read_manifest
from asr.recognition.recordings import whole_file

MODEL, AUDIO = "runs/mini", "data/mini/test.jsonl"


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add MODEL and AUDIO."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", type=_there, default=MODEL, help=f"run folder, bundle or .ckpt ({MODEL})"
    )
    parser.add_argument(
        "audio", metavar="AUDIO", nargs="*", default=[AUDIO], help=f"files, folders, manifests with texts ({AUDIO})"
    )


def _there(model: str) -> str:
    if not Path(model).exists():
        raise argparse.ArgumentTypeError(f"{model} must be there; make demo trains {MODEL}, or name another.")
    return model


def read_utterances(paths: Iterable[str]) -> Iterator[Utterance]:
    """Yield what AUDIO names: the utterances of manifests, and files whole."""
    for path in paths:
        if path.endswith(".jsonl"):
            yield from read_manifest(path)
        else:
            yield from (whole_file(file, str(file)) for file in find_audio(path))
