"""The folder of an exported model: programs, and the files of a bundle except its weights.

`asr.evaluate` and `asr.transcribe` read it like a bundle; other software needs only the programs and tokens.txt.
"""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from asr.apps.export.sherpa_transducer import tokens_in_order
from asr.base.onnx.names import DATA_FILES, PROGRAMS, SHERPA_ENCODER, SHERPA_STREAM
from asr.core.checkpoint.bundle import (
    CONFIG,
    Bundle,
    check_attachable,
    check_replaceable_folder,
    replace_folder,
    write_texts,
)
from asr.interfaces import Tokenizer

TOKENS, SHERPA_TOKENS, SHERPA_PIECES = "tokens.txt", "tokens-sherpa.txt", "bpe.vocab"
ALWAYS = (CONFIG, TOKENS)


def replace_exported(
    folder: Path, bundle: Bundle, programs: Mapping[str, Path], tokens: Mapping[str, str], card: str
) -> None:
    """Write the folder of an exported model; an older folder is replaced as a whole, as in `replace_bundle`.

    Args:
        folder: path of the folder.
        bundle: bundle of the model.
        programs: ONNX files and their data files, by name; they are moved to the folder.
        tokens: contents of the token files, by name: tokens.txt, and a file in sherpa-onnx's order if there is one.
        card: text of README.md.
    """

    def write(unfinished: Path) -> None:
        unfinished.mkdir(parents=True)
        write_texts(unfinished, replace(bundle, card=card))
        for name, text in tokens.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        for name, path in programs.items():
            shutil.move(path, unfinished / name)

    replace_folder(folder, _names(bundle), ALWAYS, write)


def token_files(tokenizer: Tokenizer, programs: Collection[str], blank_last: bool) -> dict[str, str]:
    """Return the token files by name, in a common format: a piece and its id per line, ▁ for a space.

    A transducer of sherpa-onnx also has `bpe.vocab`, from which sherpa-onnx spells hotwords: a piece and its score.

    Args:
        tokenizer: its tokens.
        programs: names of the programs.
        blank_last: whether sherpa-onnx needs the blank last, if the programs are a transducer's.
    """
    spelled = ["<blk>", *(piece.replace(" ", "▁") for piece in tokenizer.names[1:])]
    is_transducer = SHERPA_ENCODER in programs or SHERPA_STREAM in programs
    orders = {TOKENS: spelled} | ({SHERPA_TOKENS: tokens_in_order(spelled)} if blank_last and is_transducer else {})
    files = {
        name: "".join(f"{piece} {number}\n" for number, piece in enumerate(order)) for name, order in orders.items()
    }
    scores = tokenizer.piece_scores if is_transducer else {}
    pieces = "".join(f"{piece}\t{score}\n" for piece, score in scores.items())
    return files | ({SHERPA_PIECES: pieces} if pieces else {})


def check_exported(folder: Path, bundle: Bundle) -> None:
    """Check before the export that `replace_exported` will not refuse the folder."""
    check_attachable(bundle.config)
    check_replaceable_folder(folder, _names(bundle), ALWAYS)


def _names(bundle: Bundle) -> set[str]:
    """Return the names of files that the folder may have."""
    return {*PROGRAMS, *DATA_FILES, TOKENS, SHERPA_TOKENS, SHERPA_PIECES, *bundle.names}
