"""NVIDIA NeMo's archives: a tar file, plain or gzipped, that holds a config, weights and a tokenizer's files.

Archives come from strangers. Nothing of one is written to the disk: what is needed is read into memory, which an
archive of so many bytes can fill only so far.
"""

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from asr.errors import InputError, one_line, shown
from asr.interchange.folder import check_size, read_folder
from asr.interchange.nemo_files import SAFETENSORS, TOKENIZER, WEIGHTS, is_wanted
from asr.system.learnt import MAX_BYTES

UNBOUNDED = (WEIGHTS, SAFETENSORS)  # in size, but for that of the archive
MAX_MEMBERS = 1_000
MAX_RATIO = 20  # bytes that an archive unpacks to, at most, for each of its own; weights shrink to a half
MAX_HEADER_BYTES = 1 << 20  # before a member's content
BLOCK = 1 << 18  # bytes that tarfile reads at a time
GZIP = b"\x1f\x8b"
HASHED = "nemo:"  # how a config begins the name of a file in its archive
DAMAGED = (  # what tarfile and gzip stumble over
    *(tarfile.TarError, zlib.error, OSError, EOFError),
    *(ValueError, LookupError, OverflowError, RecursionError),
)


def read_files(path: Path) -> dict[str, bytes]:
    """Read those files of an archive, or of a folder of the same files, that a recogniser is made of, by name.

    Raises:
        InputError: it is no such archive, or is damaged, or holds what an archive of NeMo's does not.
    """
    if not path.exists():
        raise InputError(f"{path}: there must be a .nemo archive, or a folder of its files; there is nothing.")
    try:
        if path.is_dir():
            return read_folder(path, is_wanted, UNBOUNDED)
        if not path.is_file():
            raise InputError(f"{path}: an archive must be a file; this is a device or a pipe.")
        return _read_archive(path)
    except InputError:
        raise
    except DAMAGED as error:
        must = f"{path}: must be a .nemo archive, a tar file, plain or gzipped"
        raise InputError(f"{must}; it is damaged, or none: {one_line(error)}.") from None


class _Stream:
    """A stream that tarfile reads, of which no more may be read than was allowed before."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._left = 0

    def allow(self, size: int) -> None:
        """Let `size` bytes be read from here on; tarfile has read a block too many, and will again."""
        self._left = size + 2 * BLOCK

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            must = f"{self._path}: what an archive tells of a member must have at most {MAX_HEADER_BYTES:,} bytes"
            raise InputError(f"{must}; there are more.")
        return content


def _read_archive(path: Path) -> dict[str, bytes]:
    left = MAX_BYTES + MAX_RATIO * path.stat().st_size
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    with path.open("rb") as file:
        is_gzip = file.read(len(GZIP)) == GZIP
        file.seek(0)
        unpacked: BinaryIO = gzip.GzipFile(fileobj=file) if is_gzip else file  # type: ignore[assignment]
        stream = _Stream(unpacked, path)
        stream.allow(MAX_HEADER_BYTES)
        with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK, errorlevel=2) as archive:  # type: ignore[call-overload]
            while (member := archive.next()) is not None:
                name = _checked_name(path, member)
                left -= max(0, member.size)
                if name in seen:
                    raise InputError(f"{path}: an archive must hold each member once; {shown(name)} is there twice.")
                if len(seen) == MAX_MEMBERS:
                    raise InputError(f"{path}: an archive must hold at most {MAX_MEMBERS:,} members; there are more.")
                if left < 0:
                    must = f"{path}: an archive must unpack to at most {MAX_RATIO} times its own bytes"
                    raise InputError(f"{must}; {shown(name)} is beyond them.")
                seen.add(name)
                wanted = is_wanted(name) and member.isreg()
                if wanted:
                    check_size(path, name, member.size, UNBOUNDED)
                stream.allow(member.size)
                content = _content(archive, member, wanted)
                if wanted:
                    files[name] = content
                stream.allow(MAX_HEADER_BYTES)
    return files


def _checked_name(path: Path, member: tarfile.TarInfo) -> str:
    """A member's name without the `./` before it, if it is a file or a folder that lies below the archive's top."""
    name = member.name.removeprefix("./")
    if member.name.startswith("/") or ".." in Path(member.name).parts or "\0" in member.name:
        raise InputError(f"{path}: a member's name must lead into the archive; got {shown(member.name)}.")
    if not (member.isreg() or member.isdir()) or member.issparse():
        what = "a link" if member.issym() or member.islnk() else "no plain file"
        raise InputError(f"{path}: an archive must hold plain files and folders; {shown(member.name)} is {what}.")
    return name


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, is_wanted: bool) -> bytes:
    """Read a member to its end; give what it holds if it is wanted."""
    file = archive.extractfile(member)
    if file is None:  # a folder
        return b""
    if is_wanted:
        return file.read()
    while file.read(1 << 20):
        pass
    return b""


def tokenizer_file(files: Mapping[str, bytes], named: object, path: Path) -> bytes:
    """Find a tokenizer's SentencePiece model.

    Args:
        files: of the archive.
        named: what the config says it is called, if it does: `nemo:<hash>_tokenizer.model`.
        path: of the archive, for errors.

    Raises:
        InputError: it is not there.
    """
    there = sorted(name for name in files if name.endswith(TOKENIZER))
    if isinstance(named, str) and named.startswith(HASHED):
        name = named.removeprefix(HASHED)
    elif len(there) == 1:
        [name] = there
    else:
        name = TOKENIZER
    if name not in there:
        has = ", ".join(map(shown, there[:3])) or "none"
        raise InputError(f"{path}: the tokenizer's model {shown(name)} must be there; got {has}.")
    return files[name]


def hashed(name: str, content: bytes) -> str:
    """Name a tokenizer's file as NeMo does in an archive."""
    return f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}_{name}"


def write_archive(file: BinaryIO, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a plain tar as NeMo 3 does; the same files give the same bytes."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folder = tarfile.TarInfo("./")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name, content in files:
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
