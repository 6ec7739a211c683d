"""Download of models from a hub with the interface of huggingface.co, by their address: `hf://OWNER/NAME[@REVISION]`.

Files are stored below Hugging Face's own folder (HF_HOME), and a stored file is not downloaded again. An interrupted
download resumes where it stopped, also in another process. Each file's hash is compared with the server's ETag (SHA-256
for a large file, git's SHA-1 for a small file), because the client library does not check the hash.
"""

import fcntl
import hashlib
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple

from asr.checkpoint.address import SCHEME, Address, is_address, parse
from asr.checkpoint.bundle import CARD, CONFIG, WEIGHTS
from asr.errors import InputError, how_to_install, one_line, shown
from asr.interchange import nemo_files
from asr.interchange.huggingface_files import NEEDED, READ
from asr.system.files import NO_ROOM, UNFINISHED, sync_folder, write_whole_text
from asr.system.learnt import parse_json

logger = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")
FILE_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)  # files to download: not in a folder, and not hidden
BUNDLE_FILES = (".json", ".safetensors", ".model", ".txt", ".arpa", ".md")
MAX_FILES = 100
NEMO = ".nemo"
SHA256, GIT_SHA1 = 64, 40  # numbers of hexadecimal digits
BLOCK = 1 << 20


class Download(NamedTuple):
    """A downloaded model.

    Args:
        path: path of its folder, or of its `.nemo` archive.
        address: address with the commit as the revision.
        card: text of its model card; may be empty.
    """

    path: Path
    address: Address
    card: str


def path_of(model: str | Path) -> Path:
    """Return the file or folder of a model; a model given by its address is downloaded first.

    Raises:
        InputError: the address is invalid, or the model does not exist or cannot be downloaded.
    """
    return download(str(model)).path if is_address(model) else Path(model)


def download(text: str) -> Download:
    """Download a model by its address, unless it is stored already.

    Raises:
        InputError: as for `path_of`.
    """
    address = parse(text)
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        must = f"{SCHEME} needs the package huggingface_hub; it is not installed"
        raise InputError(f"{must}. {how_to_install('hub')}") from None
    if not sys.stderr.isatty():
        disable_progress_bars()
    root = Path(constants.HF_HOME) / "asr" / f"{address.owner}--{address.name}"
    try:
        listing = _look_up(address, root)
        folder = root / listing.commit
        for name in listing.names:
            _download(address, listing.commit, name, folder)
    except InputError as error:
        raise InputError(f"{text}: {error}") from None
    except Exception as error:  # any error of the client's HTTP library or of the disk
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            must = f"{text}: the disk must have room for the model, in {root}; {error.strerror}"
            raise InputError(f"{must}. Free some space, or set HF_HOME to a folder on another disk.") from None
        raise InputError(f"{text}: the model must exist, and its server must answer; {_reason(error)}") from None
    archives = [name for name in listing.names if name.endswith(NEMO)]
    card = (folder / CARD).read_text(encoding="utf-8", errors="replace") if CARD in listing.names else ""
    exactly = address._replace(revision=listing.commit)
    return Download(folder / archives[0] if archives else folder, exactly, card)


class _Listing(NamedTuple):
    """A commit of a model, and the names of the files to download."""

    commit: str
    names: list[str]


def _look_up(address: Address, root: Path) -> _Listing:
    """Request the commit and the names of the files from the server; if it does not answer, use its last answer."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    stored = root / f"{address.revision.replace('/', '%')}.json"
    if stored.is_file() and COMMIT.fullmatch(address.revision):  # a commit never changes
        return _Listing(*parse_json(stored.read_bytes(), stored.name))
    try:
        model = HfApi(_endpoint()).model_info(
            address.repository, revision=address.revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
    except HfHubHTTPError:  # the server has answered with an error, which must not be hidden
        raise
    except Exception as error:  # any error of the client's HTTP library
        if not stored.is_file():
            raise
        logger.warning("%s: the server does not answer (%s); using the files stored earlier", address, _reason(error))
        return _Listing(*parse_json(stored.read_bytes(), stored.name))
    if not COMMIT.fullmatch(model.sha or ""):
        raise InputError(f"the server must name the commit; got {shown(model.sha)}.")
    listing = _Listing(str(model.sha), _chosen([sibling.rfilename for sibling in model.siblings or []]))
    root.mkdir(parents=True, exist_ok=True)
    write_whole_text(stored, json.dumps(listing))
    return listing


def _chosen(names: list[str]) -> list[str]:
    """Choose the files to download: a bundle, NeMo's files, transformers' files or one archive, each with the card."""
    plain = [name for name in names if FILE_NAME.fullmatch(name)]
    archives = [name for name in plain if name.endswith(NEMO)]
    card = [CARD] if CARD in plain else []
    if {CONFIG, WEIGHTS} <= {*plain}:
        chosen = [name for name in plain if name.endswith(BUNDLE_FILES)]
    elif nemo_files.CONFIG in plain:
        chosen = [name for name in plain if nemo_files.is_wanted(name)] + card
    elif {*NEEDED} <= {*plain} and not archives:
        chosen = [name for name in plain if name in READ] + card
    else:
        chosen = archives + card
    if len(archives) != 1 and chosen == archives + card:
        transformers = f"a folder of transformers ({', '.join(NEEDED)})"
        must = f"a model must be a bundle ({CONFIG}, {WEIGHTS}), {transformers}, or one {NEMO} archive"
        raise InputError(f"{must}; it holds {', '.join(map(shown, plain[:3])) or 'nothing'}.")
    if len(chosen) > MAX_FILES:
        raise InputError(f"a model must have at most {MAX_FILES} files; it has {len(chosen):,}.")
    return chosen


def _endpoint() -> str | None:
    """Return the address of the server from the environment; None: the client's default."""
    return os.environ.get("HF_ENDPOINT") or None


def _download(address: Address, commit: str, name: str, folder: Path) -> None:
    """Download a file, or the rest of an interrupted download, and compare its hash with the server's ETag."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    path = folder / name
    if path.is_file():
        return
    url = hf_hub_url(address.repository, name, revision=commit, endpoint=_endpoint())
    expected = get_hf_file_metadata(url, timeout=constants.HF_HUB_ETAG_TIMEOUT, endpoint=_endpoint())
    if not re.fullmatch(f"[0-9a-f]{{{SHA256}}}|[0-9a-f]{{{GIT_SHA1}}}", expected.etag or ""):
        raise InputError(f"{name}: its ETag must be SHA-256 or git's SHA-1; got {shown(expected.etag)}.")
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{expected.etag}{UNFINISHED}"
    with unfinished.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another process may be downloading it
        if path.is_file():
            return
        size = file.seek(0, os.SEEK_END)
        if expected.size is not None and size > expected.size:
            size = file.truncate(0)
        http_get(url, file, resume_size=size, expected_size=expected.size, headers=build_hf_headers())
        file.flush()
        os.fsync(file.fileno())
        digest = _digest(file, len(str(expected.etag)))
        if digest != expected.etag:
            unfinished.unlink()
            must = f"{name}: the download must have the server's hash, {expected.etag}"
            raise InputError(f"{must}; it has {digest}. Try again.")
        os.replace(unfinished, path)
    sync_folder(folder)


def _digest(file: BinaryIO, digits: int) -> str:
    """Return a file's hash with this number of hexadecimal digits: SHA-256, or the SHA-1 that git computes."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    digest = hashlib.sha256() if digits == SHA256 else hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    while block := file.read(BLOCK):
        digest.update(block)
    return digest.hexdigest()


def _reason(error: Exception) -> str:
    """Describe an error of the client library in one line."""
    return f"{type(error).__name__}: {one_line(error)}"
