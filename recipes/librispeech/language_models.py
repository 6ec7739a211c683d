"""Download the n-gram language models published with LibriSpeech (OpenSLR 11), and convert their words to lower case.

    python -m recipes.librispeech.language_models --output-dir data/librispeech/lm --models 3-gram.pruned.1e-7 4-gram

Each model becomes `<output-dir>/<model>.arpa`. The published files are in capitals, but training texts are normalised
by `asr.base.text.normalize.basic`, which writes lower case. `<UNK>` becomes `<unk>`; numbers do not change.
"""

import argparse
import gzip
import sys
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

from rich.progress import Progress

from asr.base.system.files import UNFINISHED, write_whole
from asr.errors import InputError
from recipes.command import GO_ON, ROOM, AddOption, run_recipe
from recipes.librispeech.download import (
    MIRRORS,
    Archive,
    fetch_and_unpack_all,
    mirror_url,
    say,
)

RECIPE = "recipes.librispeech.language_models"
LANGUAGE_MODELS_RESOURCE = 11  # OpenSLR's number
# Bytes and MD5 of <model>.arpa.gz. Bytes: kaldi, egs/librispeech/s5/local/download_lm.sh. MD5: pytorch-database-prep by
# S. Robertson (github.com/sdrobert), librispeech.py; its checksums of the subsets equal those of OpenSLR's md5sum.txt.
LANGUAGE_MODELS = {
    "3-gram": (759636181, "74cbb837e582378c26c602e1c8cbcb9c"),
    "3-gram.pruned.1e-7": (34094057, "9a0f1325bcaf3a0f7b7be4be10823c2a"),
    "3-gram.pruned.3e-7": (13654242, "8f67ec741827742eee05799ab7605b50"),
    "4-gram": (1355172078, "6abdcd5b055bd482e4f9defe91d40408"),
}
UNPACKED_PER_BYTE = 4.0  # a cautious estimate, since no size is published; gzip compresses ARPA text about three-fold
BLOCK_BYTES = 1 << 20
BEGIN, END = b"\\data\\", b"\\end\\"  # first and last line of an ARPA file, except empty lines

# Pairs of neighbouring bytes reveal text that is not in capitals. For this, each byte is mapped to its class:
# lower-case letter (a), capital or apostrophe (A), space or tab (a space), non-ASCII byte (!), other (a dot).
_NEIGHBOURS = bytes(
    ord("a") if byte in b"abcdefghijklmnopqrstuvwxyz"
    else ord("A") if byte in b"ABCDEFGHIJKLMNOPQRSTUVWXYZ'"
    else ord(" ") if byte in b" \t"
    else ord("!") if byte >= 128
    else ord(".")
    for byte in range(256)
)  # fmt: skip
_WRONG = (b" a", b"Aa", b"!")  # must not occur: a word in lower case, lower case after a capital, a non-ASCII byte


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return run_recipe(RECIPE, __doc__, _add_options, _run, arguments, must=ROOM, interrupted=GO_ON)


def _run(options: argparse.Namespace) -> None:
    keep = options.keep_archives
    for path in fetch_language_models(options.models, options.output_dir, options.mirror, keep_archives=keep):
        print(f"{path} is ready; its words are in lower case, like the output of asr.base.text.normalize.basic.")


def fetch_language_models(models: list[str], output_dir: Path, mirror: str, *, keep_archives: bool) -> list[Path]:
    """Download and unpack the named language models into `output_dir`; return their paths.

    A complete model is not changed. An existing archive `<model>.arpa.gz` is verified and used. Downloads go to
    `<model>.arpa.gz.part`, which a later run resumes.

    Args:
        models: names in LANGUAGE_MODELS.
        output_dir: created if absent.
        mirror: a name in MIRRORS, or the URL of a folder with the archives.
        keep_archives: whether a downloaded archive stays as `<model>.arpa.gz` after it has been unpacked.

    Raises:
        InputError: a name or the mirror is unknown, the disk is too small, another file has a model's name, or the
            archive cannot be downloaded, has the wrong checksum, or cannot be unpacked.
    """
    unknown = [model for model in models if model not in LANGUAGE_MODELS]
    if unknown:
        raise InputError(f"--models must be chosen from {', '.join(LANGUAGE_MODELS)}; got {', '.join(unknown)}.")
    base_url = mirror_url(mirror, LANGUAGE_MODELS_RESOURCE)
    output_dir.mkdir(parents=True, exist_ok=True)
    paths = {model: output_dir / f"{model}.arpa" for model in models}
    archives = {path: _archive(base_url, path) for path in paths.values() if not _is_whole(path)}
    for path in archives:
        path.with_name(f".{path.name}{UNFINISHED}").unlink(missing_ok=True)  # left by a run that was killed
    fetch_and_unpack_all(
        archives,
        unpack_arpa,
        unpacked_per_byte=UNPACKED_PER_BYTE,
        keep_archives=keep_archives,
        advice="Make room, give another --output-dir, or fetch fewer --models.",
    )
    return list(paths.values())


def unpack_arpa(archive: Path, path: Path, progress: Progress) -> None:
    """Unpack an ARPA file with its words in lower case, completely or not at all.

    The published text is verified by gzip's checksum and length at the end of the archive.

    Raises:
        InputError: the archive is damaged, truncated, or not an ARPA file in capitals, or the file cannot be written;
            no file remains.
    """
    try:
        with (
            progress.open(archive, "rb", description=f"unpacking {archive.name}") as compressed,
            gzip.GzipFile(fileobj=compressed) as text,
        ):
            write_whole(path, lambda out: out.writelines(lower_case(text)))
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{archive}: must be a complete and undamaged gzip file; {error}.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{archive}: cannot be unpacked to {path}; {reason}. Make room, or give another --output-dir."
        ) from None
    except InputError as error:
        raise InputError(f"{archive}: {error}. The archive was not unpacked; choose another --mirror.") from None


def lower_case(text: BufferedIOBase) -> Iterator[bytes]:
    """Yield blocks of an ARPA file's text converted to lower case; only its words change.

    Every word must be in ASCII capitals, so that the conversion is one to one and no two n-grams become equal. (In
    numbers, only the E of an exponent can change, which has no effect.)

    Raises:
        InputError: a word is not in capitals, both <unk> and <UNK> occur, or the end of the file is missing.
    """
    tail, spellings = b"", set[bytes]()
    for lines in _whole_lines(text):
        if not tail and not lines.lstrip().startswith(BEGIN):
            raise InputError(f"must be an ARPA file, which begins with {BEGIN.decode()}")
        neighbours = lines.translate(_NEIGHBOURS)
        position = max(neighbours.find(wrong) for wrong in _WRONG)
        if position >= 0:
            line = lines[lines.rfind(b"\n", 0, position) + 1 :].split(b"\n", 1)[0]
            must = "all words of the file must be in ASCII capitals, so that they can be converted to lower case"
            raise InputError(f"{must}; this line is not: {line!r}")
        spellings |= {spelling for spelling in (b"<unk>", b"<UNK>") if spelling in lines}
        if len(spellings) > 1:
            raise InputError("the file must spell the unknown word either <unk> or <UNK>; it has both spellings")
        yield lines.lower()
        tail = (tail + lines)[-BLOCK_BYTES:]
    if not tail.rstrip().endswith(END):
        raise InputError(f"must be a complete ARPA file, which ends with {END.decode()}")


def _whole_lines(text: BufferedIOBase) -> Iterator[bytes]:
    """Yield blocks of about BLOCK_BYTES of complete lines."""
    begun = b""
    while block := text.read(BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if end:
            yield begun + block[:end]
            begun = b""
        begun += block[end:]
    if begun:
        yield begun


def _is_whole(path: Path) -> bool:
    """Whether the file exists; if it does, check that it is a complete language model in lower case.

    Only its beginning and end are read. That suffices, because files are written atomically.
    """
    if not path.exists():
        return False
    with path.open("rb") as text:
        head = text.read(BLOCK_BYTES)
        text.seek(max(0, path.stat().st_size - BLOCK_BYTES))
        tail = text.read()
    if not (head.lstrip().startswith(BEGIN) and tail.rstrip().endswith(END) and head + tail == (head + tail).lower()):
        raise InputError(
            f"{path}: if this file exists, it must be a complete language model in lower case; it is not. Move it away."
        )
    say(f"{path}: exists and is complete; not fetched.")
    _archive("", path).part.unlink(missing_ok=True)  # left by a run killed before this step
    return True


def _archive(base_url: str, path: Path) -> Archive:
    size, md5 = LANGUAGE_MODELS[path.stem]
    return Archive(f"{base_url}/{path.name}.gz", path.with_name(f"{path.name}.gz"), size, md5)


def _add_options(add: AddOption) -> None:
    add("--output-dir", type=Path, required=True, help="for <model>.arpa")
    add("--models", nargs="+", required=True, metavar="NAME", help=f"models to download: {', '.join(LANGUAGE_MODELS)}")
    add("--mirror", default="openslr", help=f"{', '.join(MIRRORS)}, or a base URL (default: openslr)")
    add("--keep-archives", action="store_true", help="do not remove unpacked archives")


if __name__ == "__main__":
    sys.exit(main())
