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


def extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write a file of an archive to `target`, or make the folder; the owner, mode and time in the archive are ignored.

    Before 3.11.4, Python has no filters for tarfile, and some later patch levels let links lead outside of the
    destination (CVE-2025-4517). Here, no link is made.

    Raises:
        InputError: the member leads out of the archive's folder, or is a link or a device; the message names it.
    """
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise InputError(f"members of the archive must stay inside its folder; {member.name!r} leads out of it")
    if not (member.isfile() or member.isdir()):
        raise InputError(f"members of the archive must be files or folders; {member.name!r} is a link or a device")
    (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(member)
    if content is not None:  # a folder has no content
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file)


def _extract(archive: Path, destination: Path, progress: Progress) -> None:
    with (
        progress.open(archive, "rb", description=f"unpacking {archive.name}") as compressed,
        tarfile.open(fileobj=compressed, mode="r|*") as tar,
    ):
        try:
            for member in tar:
                extract(tar, member, destination / member.name)
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
