"""Download archives of LibriSpeech from OpenSLR, one at a time; resume after interruptions, verify and unpack."""

import hashlib
import http.client
import os
import shutil
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from asr.errors import InputError
from recipes.librispeech.corpus import SUBSETS, corpus_root, count_audio_files
from recipes.librispeech.unpack import discard_unpacking, unpack

MIRRORS = {
    "openslr": "https://www.openslr.org/resources",
    "us": "https://us.openslr.org/resources",
    "eu": "https://openslr.elda.org/resources",
    "cn": "https://openslr.magicdatatech.com/resources",
}
PAUSES_SECONDS = (2.0, 5.0, 15.0, 30.0, 60.0)  # before each repeated attempt; the last failure is an error
TIMEOUT_SECONDS = 60.0  # time without any data after which an attempt fails
CHUNK_BYTES = 1 << 16
SUBSET_UNPACKED_PER_BYTE = 1.1  # FLAC is not compressible; the rest is overhead of tar and the file system


class BrokenOffError(Exception):
    """A transfer was interrupted; the received data is stored, and another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A published archive.

    Args:
        url: address of the archive.
        path: path of the archive on disk.
        size: size in bytes.
        md5: published checksum.
    """

    url: str
    path: Path
    size: int
    md5: str

    @property
    def part(self) -> Path:
        """Path of the data received so far."""
        return self.path.with_name(f"{self.path.name}.part")


def download(names: list[str], corpus_dir: Path, mirror: str, *, keep_archives: bool) -> None:
    """Download and unpack the named subsets into `corpus_dir` (or `corpus_dir/LibriSpeech`, if that is a folder).

    A complete subset is not changed. An existing archive `<subset>.tar.gz` is verified and used. Downloads go to
    `<subset>.tar.gz.part`, which a later run resumes.

    Args:
        names: names of subsets.
        corpus_dir: created if absent.
        mirror: a name in MIRRORS, or the base URL of another copy.
        keep_archives: whether a downloaded archive stays as `<subset>.tar.gz` after it has been unpacked.

    Raises:
        InputError: a name or the mirror is unknown, the disk is too small, a subset is incomplete, or the archive
            cannot be downloaded or has the wrong checksum.
    """
    unknown = [name for name in names if name not in SUBSETS]
    if not names or unknown:
        given = ", ".join(unknown) or "no --subsets"
        raise InputError(f"--download needs --subsets, chosen from {', '.join(SUBSETS)}; got {given}.")
    urls = {name: f"{mirror_url(mirror, SUBSETS[name].resource)}/{name}.tar.gz" for name in names}
    corpus_dir.mkdir(parents=True, exist_ok=True)
    root = corpus_root(corpus_dir)
    archives = {root / name: _archive(urls[name], root, name) for name in names if not _is_whole(root, name)}
    for folder in archives:
        discard_unpacking(root, folder.name)
    fetch_and_unpack_all(
        archives,
        lambda archive, folder, progress: unpack(archive, root, folder.name, progress),
        unpacked_per_byte=SUBSET_UNPACKED_PER_BYTE,
        keep_archives=keep_archives,
        advice="Make room, give another --corpus-dir, or fetch fewer --subsets.",
    )


def mirror_url(mirror: str, resource: int) -> str:
    """Return the base URL of an OpenSLR resource at a named mirror; if `mirror` is a URL, return this URL.

    Raises:
        InputError: the mirror is neither a name nor a URL.
    """
    if mirror in MIRRORS:
        return f"{MIRRORS[mirror]}/{resource}"
    return checked_url(mirror, f"one of {', '.join(MIRRORS)}, or ")


def checked_url(mirror: str, others: str = "") -> str:
    """Return the base URL of a mirror, without a slash at its end.

    Args:
        mirror: the value of --mirror.
        others: other accepted values, for the message.

    Raises:
        InputError: the mirror is not an http(s) URL.
    """
    try:
        parts = urlsplit(mirror)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # an invalid port
        is_url = False
    if not is_url or any(character.isspace() for character in mirror):
        raise InputError(f"--mirror must be {others}an http(s) URL; got {mirror!r}.")
    return mirror.rstrip("/")


def check_disk_space(archives: list[Archive], *, unpacked_per_byte: float, keep_archives: bool, advice: str) -> None:
    """Check that the archives, and their contents, will fit on the disk of their common folder.

    Args:
        archives: the archives to download and unpack.
        unpacked_per_byte: unpacked bytes per byte of an archive.
        keep_archives: whether the archives remain on the disk after they have been unpacked.
        advice: what the user can do if the archives do not fit; ends the message.

    Raises:
        InputError: the archives do not fit; the message names the bytes needed and the bytes free.
    """
    if not archives:
        return
    to_fetch = [0 if archive.path.exists() else max(0, archive.size - _size(archive.part)) for archive in archives]
    fetched = sum(to_fetch) if keep_archives else max(to_fetch)  # otherwise only one archive exists at a time
    needed = fetched + unpacked_per_byte * sum(archive.size for archive in archives)
    folder = archives[0].path.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        names = ", ".join(archive.path.name for archive in archives)
        raise InputError(
            f"{folder}: must have {needed / 1e9:.1f} GB free to fetch and unpack {names}; it has "
            f"{free / 1e9:.1f} GB. {advice}"
        )


def fetch_and_unpack_all(
    archives: Mapping[Path, Archive],
    unpack: Callable[[Path, Path, Progress], object],
    *,
    unpacked_per_byte: float,
    keep_archives: bool,
    advice: str,
) -> None:
    """Download the missing archives, verify each archive and unpack it, one after another.

    Args:
        archives: keyed by the path to unpack to; all archives are in one folder.
        unpack: called with the archive's path, the path to unpack it to, and the progress.
        unpacked_per_byte: unpacked bytes per byte of an archive.
        keep_archives: whether downloaded archives remain on the disk.
        advice: what the user can do if the disk is too small; ends the message.

    Raises:
        InputError: the disk is too small, or an archive cannot be downloaded, has the wrong checksum, or cannot be
            unpacked.
    """
    check_disk_space(
        list(archives.values()), unpacked_per_byte=unpacked_per_byte, keep_archives=keep_archives, advice=advice
    )
    with transfer_progress() as progress:
        for path, archive in archives.items():
            fetch_and_unpack(archive, path, unpack, progress, keep_archives=keep_archives)


def transfer_progress() -> Progress:
    """Return progress bars, in bytes, for transfers and unpacking; they are hidden if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal)


def fetch_and_unpack(
    archive: Archive,
    unpacked: Path,
    unpack: Callable[[Path, Path, Progress], object],
    progress: Progress,
    *,
    keep_archives: bool,
) -> None:
    """Download the archive if it is missing, verify it, and unpack it.

    Args:
        archive: removed after it has been unpacked, unless it existed before or `keep_archives` is set.
        unpacked: path to unpack it to.
        unpack: called with the archive's path, `unpacked` and the progress; unpacks it completely or not at all.
        progress: shows transfers and unpacking.
        keep_archives: whether a downloaded archive remains on the disk.

    Raises:
        InputError: the archive cannot be downloaded, has the wrong checksum, or cannot be unpacked.
    """
    path, part = archive.path, archive.part
    if path.exists():  # the user's own file is never removed
        if (digest := _md5(path, progress)) != archive.md5:
            raise InputError(
                f"{path}: must have the published MD5 {archive.md5}; it has {digest}. "
                "Delete it; the same command then downloads it again."
            )
        unpack(path, unpacked, progress)
        say(f"{path}: existed already; it was verified, unpacked to {unpacked}, and is not removed.")
        return
    say(f"{archive.url}: fetching {archive.size / 1e6:.1f} MB to {part}.")
    fetch(archive.url, part, archive.size, progress)
    if (digest := _md5(part, progress)) != archive.md5:
        part.unlink()
        raise InputError(
            f"{archive.url}: must have the published MD5 {archive.md5}; the download has {digest} and was deleted. "
            "Run the command again, or choose another --mirror."
        )
    if keep_archives:
        os.replace(part, path)
    unpack(path if keep_archives else part, unpacked, progress)
    if not keep_archives:
        part.unlink()
    fate = f"the archive stays as {path}" if keep_archives else "the archive was removed (--keep-archives keeps it)"
    say(f"{unpacked}: verified and unpacked; {fate}.")


def fetch(url: str, part: Path, size: int, progress: Progress) -> None:
    """Download a file of `size` bytes to `part`, starting after the bytes already there; only the size is checked.

    An interrupted transfer is repeated after a pause. Only consecutive attempts without new data count towards the
    limit, so that 30 GB can arrive over a bad connection.

    Raises:
        InputError: the server does not have the file, the file has another size, or the server interrupts the
            transfer too often.
    """
    if _size(part) > size:
        say(f"{part}: is longer than the archive ({_size(part)} > {size} bytes); deleted, to download it again.")
        part.unlink()
    largest, failures = _size(part), 0
    while _size(part) < size:
        try:
            _transfer(url, part, size, progress)
        except BrokenOffError as error:
            have = _size(part)
            failures = 1 if have > largest else failures + 1
            largest = max(largest, have)
            received = f"{have} of {size} bytes are there"
            if failures > len(PAUSES_SECONDS):
                raise InputError(
                    f"{url}: {error}; gave up after {failures} attempts without new data. {received}: "
                    "the same command resumes; or choose another --mirror."
                ) from None
            pause = PAUSES_SECONDS[failures - 1]
            say(f"{url}: {error}; {received}; trying again in {pause:g} s.")
            time.sleep(pause)


def say(message: str) -> None:
    """Print a message on stderr."""
    print(message, file=sys.stderr, flush=True)


def _archive(url: str, root: Path, name: str) -> Archive:
    return Archive(url, root / f"{name}.tar.gz", SUBSETS[name].archive_bytes, SUBSETS[name].md5)


def _is_whole(root: Path, name: str) -> bool:
    folder = root / name
    if not folder.exists():
        return False
    num_files, published = count_audio_files(folder), SUBSETS[name].num_utterances
    if num_files != published:
        raise InputError(
            f"{folder}: --download does not change an incomplete subset; it holds {num_files} of {published} "
            "FLAC files. Move it away, or leave out --download."
        )
    say(f"{folder}: exists and is complete ({num_files} FLAC files); not fetched.")
    (root / f"{name}.tar.gz.part").unlink(missing_ok=True)  # left by a run killed before this step
    return True


def _transfer(url: str, part: Path, size: int, progress: Progress) -> None:
    """Try once to download the missing bytes, and append them to the file."""
    have = _size(part)
    with _open(url, part, have) as response:
        position = _first_byte(url, response, have, size)
        task = progress.add_task(f"fetching {part.stem}", total=size, completed=position)
        try:
            with part.open("ab") as out:
                out.truncate(position)  # to 0, if the server sends the whole file
                while chunk := _read(response):
                    out.write(chunk)
                    position += len(chunk)
                    progress.update(task, completed=position)
                    if position > size:
                        must = f"{url}: must have {size} bytes"
                        raise InputError(f"{must}; the server sent more. Choose another --mirror.")
        finally:
            progress.remove_task(task)
    if position < size:
        raise BrokenOffError("the connection closed early")


def _open(url: str, part: Path, have: int) -> http.client.HTTPResponse:
    headers = {"User-Agent": "asr-recipes"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"the server answered {error.code} {error.reason}"
        if error.code == 416 and have:  # the server cannot resume here: start again
            part.unlink()
            raise BrokenOffError(f"{answer} to a request for the rest; {part.name} was deleted") from None
        if error.code in (408, 429) or error.code >= 500:
            raise BrokenOffError(answer) from None
        raise InputError(f"{url}: must be the archive; {answer}. Choose another --mirror.") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise InputError(f"{url}: must have a valid certificate; {reason}. Choose another --mirror.") from None
        raise BrokenOffError(f"no answer ({reason or type(reason).__name__})") from None
    if not isinstance(response, http.client.HTTPResponse):  # urllib follows a redirect to ftp
        raise InputError(f"{url}: must redirect to http(s) only; it leads to {response.url}. Choose another --mirror.")
    return response


def _first_byte(url: str, response: http.client.HTTPResponse, have: int, size: int) -> int:
    """Return the file position of the first byte in the response body; check the size of the whole file."""
    start, total = 0, response.headers.get("Content-Length", str(size))
    if response.status == 206:
        unit_and_span, _, total = response.headers.get("Content-Range", "").partition("/")
        span = unit_and_span.removeprefix("bytes ").partition("-")[0]
        if not span.isdigit() or int(span) > have:
            raise InputError(
                f"{url}: must send the requested bytes, from byte {have} on; "
                f"it sends {unit_and_span!r}. Choose another --mirror."
            )
        start = int(span)
    if total not in (str(size), "*"):
        raise InputError(f"{url}: must have {size} bytes; the server has {total}. Choose another --mirror.")
    return start


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(f"the connection broke ({error or type(error).__name__})") from None


def _md5(path: Path, progress: Progress) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with progress.open(path, "rb", description=f"verifying {path.name}") as content:
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
