"""The folder of an exported model: programs, and what a bundle holds beside its weights.

So `asr.evaluate` and `asr.transcribe` read it as they read a bundle, and a stranger needs the programs and tokens.txt
alone.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from asr.checkpoint.bundle import (
    CONFIG,
    Bundle,
    check_attachable,
    check_replaceable_folder,
    replace_folder,
    write_texts,
)
from asr.onnx.names import PROGRAMS

TOKENS = "tokens.txt"
ALWAYS = (CONFIG, TOKENS)


def replace_exported(folder: Path, bundle: Bundle, programs: Mapping[str, bytes], tokens: str, card: str) -> None:
    """Write the folder of an exported model; an older one is replaced as a whole, as `replace_bundle` does.

    Args:
        folder: where.
        bundle: that the model is of.
        programs: ONNX files by name.
        tokens: what stands in tokens.txt.
        card: what stands in README.md.

    Raises:
        InputError: as `replace_bundle`.
    """

    def write(unfinished: Path) -> None:
        unfinished.mkdir(parents=True)
        write_texts(unfinished, replace(bundle, card=card))
        (unfinished / TOKENS).write_text(tokens, encoding="utf-8")
        for name, content in programs.items():
            (unfinished / name).write_bytes(content)

    replace_folder(folder, _names(bundle), ALWAYS, write)


def check_exported(folder: Path, bundle: Bundle) -> None:
    """Check beforehand what can be checked of that.

    Raises:
        InputError: as `replace_exported`.
    """
    check_attachable(bundle.config)
    check_replaceable_folder(folder, _names(bundle), ALWAYS)


def _names(bundle: Bundle) -> set[str]:
    """Of the files that the folder may hold."""
    return {*PROGRAMS, TOKENS, *bundle.names}
