"""Download the tagged archive of the Free Spoken Digit Dataset and unpack its recordings."""

import http.client
import os
import shutil
import sys
import tarfile
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn

from asr.errors import InputError
from recipes.digits.recordings import missing_recordings, read_recordings
from recipes.librispeech.unpack import extract

URL = "https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/v1.0.10.tar.gz"
_TIMEOUT_SECONDS = 60.0  # time without any data after which the download fails
_CHUNK_BYTES = 1 << 16


def download(corpus_dir: Path, url: str = URL) -> None:
    """Download the archive and unpack its recordings to `corpus_dir/recordings`, completely or not at all.

    An existing folder is not changed. GitHub may recreate the archive of a tag at any time, so the archive has no fixed
    checksum. Instead of a checksum, the names of the recordings are compared with the published names, and each
    recording must be readable.

    Raises:
        InputError: the archive cannot be downloaded or unpacked, or has other recordings.
    """
    recordings, unpacking = corpus_dir / "recordings", corpus_dir / ".recordings.unpacking"
    if recordings.exists():
        _say(f"{recordings}: exists already; not fetched.")
        return
    corpus_dir.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(unpacking, ignore_errors=True)  # left by a run that was killed
    unpacking.mkdir()
    try:
        archive = unpacking / "archive.tar.gz"
        _say(f"{url}: fetching.")
        _fetch(url, archive)
        num_recordings = _unpack(archive, unpacking / "recordings", url)
        os.rename(unpacking / "recordings", recordings)
    finally:
        shutil.rmtree(unpacking, ignore_errors=True)
    _say(
        f"{recordings}: unpacked. The archive has no known checksum; its {num_recordings} recordings are readable and "
        "have the published names."
    )


def _fetch(url: str, archive: Path) -> None:
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("fetching"),
        DownloadColumn(),
        TransferSpeedColumn(),
    )  # no progress bar, because the server does not send the length
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
        archive.open("wb") as out,
    ):
        task = progress.add_task("fetching", total=None)
        for chunk in _chunks(url):
            out.write(chunk)
            progress.advance(task, len(chunk))


def _chunks(url: str) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as response:
            while chunk := response.read(_CHUNK_BYTES):
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"{url}: must answer with the archive; {error or type(error).__name__}. Run the command again, or "
            "unpack the archive into --corpus-dir by other means and leave out --download."
        ) from None


def _unpack(archive: Path, destination: Path, url: str) -> int:
    """Unpack only the recordings of the archive into a new folder; return their number."""
    destination.mkdir()
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if Path(member.name).match("*/recordings/*.wav"):
                    extract(tar, member, destination / Path(member.name).name)
    except InputError as error:
        raise InputError(f"{url}: {error}. No file of it was stored.") from None
    except (EOFError, zlib.error, tarfile.TarError) as error:
        raise InputError(f"{url}: must be a complete tar.gz; {error}. Run the command again.") from None
    findings = read_recordings(destination)
    misfits = findings.misnamed + findings.damaged + missing_recordings(findings.recordings)
    if misfits:
        raise InputError(
            f"{url}: must hold the published recordings; {len(misfits)} are misnamed, unreadable or missing, "
            f"{misfits[0]} among them. No file of it was stored."
        )
    return len(findings.recordings)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
