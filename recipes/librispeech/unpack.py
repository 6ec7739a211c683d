"""Unpack an archive of LibriSpeech or another corpus: safely, and completely or not at all."""

import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from rich.progress import Progress

from asr.errors import InputError


def unpack(archive: Path, root: Path, subset: str, progress: Progress) -> None:
    """Unpack the archive's `LibriSpeech/<subset>` to `root/<subset>`, and the README and other files to `root`.

    Raises:
        InputError: the path of a member is outside the folder, or the archive cannot be unpacked; then no files remain.
    """
    with unpacked(archive, root, subset, progress) as content:
        _move_into_place(archive, content / "LibriSpeech", root, subset)


def unpack_corpus(archive: Path, folder: Path, sign: str, progress: Progress) -> None:
    """Find the folder in the archive that has a file matching the pattern `sign`, and unpack this folder to `folder`.

    Raises:
        InputError: as for `unpack`, or not exactly one folder contains such a file.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with unpacked(archive, folder.parent, folder.name, progress) as content:
        matches = sorted(content.glob(sign))
        if len(matches) != 1:
            raise InputError(f"{archive}: must hold exactly one {sign}; it holds {len(matches)}.")
        os.rename(matches[0].parent, folder)


@contextmanager
def unpacked(archive: Path, root: Path, name: str, progress: Progress) -> Iterator[Path]:
    """Unpack into a hidden folder in `root`, which is removed when the context ends.

    The caller moves the wanted files out only as its last step. So an interrupted or killed run leaves no incomplete
    folder `name`.
    """
    unpacking = unpacking_dir(root, name)
    try:
        discard_unpacking(root, name)
        unpacking.mkdir()
        _extract(archive, unpacking, progress)
        yield unpacking
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise InputError(f"{archive}: must be a tar archive that can be unpacked into {root}; {error}.") from None
    finally:
        discard_unpacking(root, name)


def unpacking_dir(root: Path, subset: str) -> Path:
    """Return the folder in which a subset is unpacked."""
    return root / f".{subset}.unpacking"


def discard_unpacking(root: Path, subset: str) -> None:
    """Remove the files that an interrupted unpacking left."""
    shutil.rmtree(unpacking_dir(root, subset), ignore_errors=True)


def safe_member(member: tarfile.TarInfo, destination: str) -> tarfile.TarInfo | None:
    """Filter for tarfile, stricter than `data`: only files and folders inside the destination, no links.

    tarfile's filter `data` makes absolute paths relative and accepts links inside the destination. LibriSpeech has
    neither, and some patch levels of Python also let links lead outside the destination (CVE-2025-4517).

    Raises:
        InputError: a member is refused; the message names it.
    """
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"members of the archive must stay inside its folder; {member.name!r} leads out of it")
    if not (member.isfile() or member.isdir()):
        raise InputError(f"members of the archive must be files or folders; {member.name!r} is a link or a device")
    return tarfile.data_filter(member, destination)


def _extract(archive: Path, destination: Path, progress: Progress) -> None:
    with (
        progress.open(archive, "rb", description=f"unpacking {archive.name}") as compressed,
        tarfile.open(fileobj=compressed, mode="r|*") as tar,
    ):
        try:
            tar.extractall(destination, filter=safe_member)
        except InputError as error:
            raise InputError(
                f"{archive}: {error}. Nothing was unpacked; delete the archive, and get it from another server."
            ) from None


def _move_into_place(archive: Path, unpacked: Path, root: Path, subset: str) -> None:
    if not (unpacked / subset).is_dir():
        raise InputError(f"{archive}: must hold the folder LibriSpeech/{subset}; it does not.")
    for path in sorted(unpacked.iterdir()):  # README.TXT, LICENSE.TXT, SPEAKERS.TXT ...
        if path.is_file() and not (root / path.name).exists():
            os.replace(path, root / path.name)
    os.rename(unpacked / subset, root / subset)
