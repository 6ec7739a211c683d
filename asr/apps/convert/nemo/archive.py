"""NVIDIA NeMo's archives: a tar file, plain or gzipped, with a config, weights and a tokenizer's files.

Archives are untrusted. Nothing is written to the disk: the required files are read into memory, and the size of the
archive bounds the bytes that are read.
"""

import gzip
import hashlib
import io
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import BinaryIO

from asr.apps.convert.folder import check_size, read_folder
from asr.base.system.learnt import MAX_BYTES
from asr.core.hub.nemo_files import SAFETENSORS, TOKENIZER, WEIGHTS, is_wanted
from asr.errors import InputError, reason_of, shown

ARCHIVES = (".nemo", ".tar", ".gz", ".tgz")
UNBOUNDED = (WEIGHTS, SAFETENSORS)  # files limited only by the archive's size
MAX_MEMBERS = 1_000
MAX_RATIO = 20  # maximum ratio of unpacked bytes to bytes of the archive; weights compress to about half
MAX_HEADER_BYTES = 1 << 20  # maximum number of bytes before a member's content
BLOCK = 1 << 18  # bytes that tarfile reads at a time
GZIP = b"\x1f\x8b"
HASHED = "nemo:"  # in a config, the prefix that marks the name of a file in the archive
DAMAGED = (  # errors of tarfile and gzip
    *(tarfile.TarError, zlib.error, OSError, EOFError),
    *(ValueError, LookupError, OverflowError, RecursionError),
)


def read_files(path: Path) -> dict[str, bytes]:
    """Read the files that a recogniser needs from an archive, or from a folder with its files; return them by name."""
    if not path.exists():
        raise InputError(f"{path}: must be a .nemo archive, or a folder of its files; it does not exist.")
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
        cure = "" if path.name.endswith(ARCHIVES) else " Give the archive, or the folder with all files of the model."
        raise InputError(f"{must}; it is damaged or another kind of file: {reason_of(error)}.{cure}") from None


class _Stream:
    """A stream for tarfile that raises an error if more bytes are read than allowed."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._left = 0

    def allow(self, size: int) -> None:
        """Set the number of bytes that may still be read: `size`, and two blocks that tarfile reads ahead."""
        self._left = size + 2 * BLOCK

    def read(self, size: int) -> bytes:
        """Read up to `size` bytes."""
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            must = f"{self._path}: a member's header must have at most {MAX_HEADER_BYTES:,} bytes"
            raise InputError(f"{must}; it has more.")
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
                    raise InputError(f"{path}: an archive must hold each member once; it holds {shown(name)} twice.")
                if len(seen) == MAX_MEMBERS:
                    raise InputError(f"{path}: an archive must hold at most {MAX_MEMBERS:,} members; there are more.")
                if left < 0:
                    must = f"{path}: an archive must unpack to at most {MAX_RATIO} times its own bytes"
                    raise InputError(f"{must}; with {shown(name)} it unpacks to more.")
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
    """Check that a member is a file or folder below the archive's top; return its name without a leading `./`."""
    name = member.name.removeprefix("./")
    if member.name.startswith("/") or ".." in Path(member.name).parts or "\0" in member.name:
        raise InputError(f"{path}: a member's name must be a path inside the archive; got {shown(member.name)}.")
    if not (member.isreg() or member.isdir()) or member.issparse():
        kind = "a link" if member.issym() or member.islnk() else "not a plain file"
        raise InputError(f"{path}: an archive must hold plain files and folders; {shown(member.name)} is {kind}.")
    return name


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, is_wanted: bool) -> bytes:
    """Read a member to its end; return its content if it is wanted."""
    file = archive.extractfile(member)
    if file is None:  # the member is a folder
        return b""
    if is_wanted:
        return file.read()
    while file.read(1 << 20):
        pass
    return b""


def tokenizer_file(files: Mapping[str, bytes], named: object, path: Path) -> bytes:
    """Return a tokenizer's SentencePiece model.

    Args:
        files: files of the archive.
        named: name of the model in the config, `nemo:<hash>_tokenizer.model`, or None.
        path: path of the archive, for errors.
    """
    present = sorted(name for name in files if name.endswith(TOKENIZER))
    if isinstance(named, str) and named.startswith(HASHED):
        name = named.removeprefix(HASHED)
    elif len(present) == 1:
        [name] = present
    else:
        name = TOKENIZER
    if name not in present:
        has = ", ".join(map(shown, present[:3])) or "none"
        raise InputError(f"{path}: the tokenizer's model {shown(name)} must exist; got {has}.")
    return files[name]


def hashed(name: str, content: bytes) -> str:
    """Return the name that a tokenizer's file has in NeMo's archives: a hash of its content, then its own name."""
    return f"{hashlib.md5(content, usedforsecurity=False).hexdigest()}_{name}"


def write_archive(file: BinaryIO, files: Iterable[tuple[str, bytes]]) -> None:
    """Write a plain tar file in NeMo 3's layout; equal files give identical archives."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        folder = tarfile.TarInfo("./")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name, content in files:
            member = tarfile.TarInfo(f"./{name}")
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
