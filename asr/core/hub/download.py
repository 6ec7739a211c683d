"""Download of models and data sets from a hub with the interface of huggingface.co, by their address.

They are stored below Hugging Face's own folder (HF_HOME), one folder for each commit, and are not downloaded again.
Each file's hash is compared with the server's ETag (SHA-256 for a large file, git's SHA-1 for a small file), because
the client library accepts other bytes of the right size.
"""

import hashlib
import logging
import os
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from asr.base.system.files import NO_ROOM, UNFINISHED, sync_folder, write_whole_text
from asr.base.system.lock import locked
from asr.core.checkpoint.address import SCHEME, TRAIN, Address, is_address, parse, parse_dataset
from asr.core.checkpoint.bundle import CARD, CONFIG, WEIGHTS
from asr.core.hub import nemo_files
from asr.core.hub.huggingface_files import CONFIG as TRANSFORMERS_CONFIG
from asr.core.hub.huggingface_files import NEEDED, wanted, weights_form
from asr.errors import InputError, how_to_install, reason_of, shown

logger = logging.getLogger(__name__)

COMMIT = re.compile(r"[0-9a-f]{40}")
PARQUET_FILE = re.compile(r"([\w=][\w.+=-]*/)*\w[\w.+=-]*\.parquet", re.ASCII)  # in any folder that is not hidden
SPLITS = {  # names of splits, as on the Hugging Face hub, and one name for each
    "train": "train",
    **dict.fromkeys(("validation", "valid", "val", "dev"), "valid"),
    **dict.fromkeys(("test", "evaluation", "eval"), "test"),
}
SPLIT = re.compile(rf"(?:partial-)?({'|'.join(SPLITS)})(?![a-zA-Z0-9])")
FILE_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)  # files to download: not in a folder, and not hidden
BUNDLE_FILES = (".json", ".safetensors", ".model", ".txt", ".arpa", ".md")
MAX_FILES = 100
NEMO = ".nemo"
SHA256 = 64  # number of hexadecimal digits; git's SHA-1 has 40


class RepositoryKind(NamedTuple):
    """A kind of repository.

    Args:
        noun: its name in messages.
        repo_type: its name in the client library.
        folder: folder of its downloads.
        choose: chooses the files to download from the names of all files.
    """

    noun: str
    repo_type: str
    folder: str
    choose: Callable[[list[str]], list[str]]


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
    """Download a model by its address, unless it is stored already."""
    address = parse(text)
    folder = _fetched(text, address, RepositoryKind("model", "model", "asr", _chosen))
    card = (folder / CARD).read_text(encoding="utf-8", errors="replace") if (folder / CARD).is_file() else ""
    return Download(next(folder.glob(f"*{NEMO}"), folder), address._replace(revision=folder.name), card)


def download_dataset(text: str) -> Path:
    """Download the Parquet files of a split of a data set, unless they are stored already; return their folder.

    Raises:
        InputError: the address is invalid, or the data set does not exist or cannot be downloaded.
    """
    address, split = parse_dataset(text)
    return _fetched(
        text, address, RepositoryKind("data set", "dataset", f"asr/datasets/{split}", partial(_of_split, split))
    )


def _fetched(text: str, address: Address, kind: RepositoryKind) -> Path:
    """Return the folder of a repository's files, which is named after their commit."""
    try:
        from huggingface_hub import constants
        from huggingface_hub.utils import disable_progress_bars
    except ImportError:
        must = f"{SCHEME} needs the package huggingface_hub; it is not installed"
        raise InputError(f"{must}. {how_to_install('hub')}") from None
    if not sys.stderr.isatty():
        disable_progress_bars()
    root = Path(constants.HF_HOME) / kind.folder / address.owner / address.name
    try:
        return root / _stored(address, root, kind)
    except InputError as error:
        raise InputError(f"{text}: {error}") from None
    except Exception as error:  # any error of the client's HTTP library or of the disk
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            must = f"{text}: the disk must have room for the {kind.noun}, in {root}; {error.strerror}"
            raise InputError(f"{must}. Free some space, or set HF_HOME to a folder on another disk.") from None
        raise InputError(f"{text}: the {kind.noun} must exist, and its server must answer; {_reason(error)}.") from None


def _stored(address: Address, root: Path, kind: RepositoryKind) -> str:
    """Download a repository to the folder of its commit in `root`, unless this folder exists; return the commit.

    If the server does not answer, the commit is that of the latest download of the revision.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    latest = root / f"{address.revision.replace('/', '%')}.commit"
    if COMMIT.fullmatch(address.revision) and (root / address.revision).is_dir():  # a commit never changes
        return address.revision
    try:
        repository: Any = HfApi(_endpoint()).repo_info(
            address.repository,
            revision=address.revision,
            repo_type=kind.repo_type,
            timeout=constants.HF_HUB_ETAG_TIMEOUT,
        )
    except HfHubHTTPError:  # the server has answered with an error, which must not be hidden
        raise
    except Exception as error:  # any error of the client's HTTP library
        commit = latest.read_text() if latest.is_file() else ""
        if not COMMIT.fullmatch(commit) or not (root / commit).is_dir():
            raise
        logger.warning("%s: the server does not answer (%s); using the files stored earlier", address, _reason(error))
        return commit
    commit = repository.sha or ""
    if not COMMIT.fullmatch(commit):
        raise InputError(f"the server must name the commit; got {shown(repository.sha)}.")
    names = kind.choose([sibling.rfilename for sibling in repository.siblings or []])
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / ".lock"):  # another process may be downloading the same
        if not (root / commit).is_dir():
            _download(address, names, root / commit, kind.repo_type)
    write_whole_text(latest, commit)
    return commit


def _chosen(names: list[str]) -> list[str]:
    """Choose the files to download: a bundle, NeMo's files, transformers' files or one archive, each with the card."""
    plain = [name for name in names if FILE_NAME.fullmatch(name)]
    archives = [name for name in plain if name.endswith(NEMO)]
    card = [CARD] if CARD in plain else []
    if {CONFIG, WEIGHTS} <= {*plain}:
        chosen = [name for name in plain if name.endswith(BUNDLE_FILES)]
    elif nemo_files.CONFIG in plain:
        chosen = [name for name in plain if nemo_files.is_wanted(name)] + card
    elif TRANSFORMERS_CONFIG in plain and weights_form(plain) and not archives:
        chosen = wanted(plain) + card
    else:
        chosen = archives + card
    if len(archives) != 1 and chosen == archives + card:
        transformers = f"a folder of transformers ({', '.join(NEEDED)})"
        must = f"a model must be a bundle ({CONFIG}, {WEIGHTS}), {transformers}, or one {NEMO} archive"
        raise InputError(f"{must}; it holds {', '.join(map(shown, plain[:3])) or 'nothing'}.")
    if len(chosen) > MAX_FILES:
        raise InputError(f"a model must have at most {MAX_FILES} files; it has {len(chosen):,}.")
    return chosen


def _of_split(split: str, names: list[str]) -> list[str]:
    """Choose the Parquet files of a split, [CONFIG/]SPLIT; without names of splits, all Parquet files are for training.

    A split is named by the last folder or file on the path that begins with the name of a split, as on the Hugging Face
    hub; folders before it, except `data` and `default`, name a configuration, such as a language.
    """
    config, _, wanted = split.rpartition("/")
    files = {name: _config_and_split(name) for name in names if PARQUET_FILE.fullmatch(name)}
    of_split = {name: of for name, (of, found) in files.items() if (found or TRAIN) == SPLITS.get(wanted, wanted)}
    chosen = [name for name, of in of_split.items() if of == config or not config]
    if not chosen:
        must = f"a data set must have Parquet files of the split {split}, such as data/{wanted}-00000-of-00001.parquet"
        given = ", ".join(map(shown, names[:3])) or "nothing"
        cure = "Name another split after a colon, or the revision of Parquet files: @refs/convert/parquet"
        raise InputError(f"{must}; it holds {given}. {cure}.")
    if len(configs := sorted({of_split[name] for name in chosen})) > 1:
        must = "the address of a data set with several configurations must name one"
        raise InputError(f"{must}: :CONFIG/{wanted} with one of {', '.join(configs)}.")
    return chosen


def _config_and_split(name: str) -> tuple[str, str]:
    """Return the configuration ("": none) and the split ("": none) that the path of a Parquet file names."""
    parts = name.split("/")
    for number in reversed(range(len(parts))):
        if match := SPLIT.match(parts[number]):
            return "/".join(part for part in parts[:number] if part not in ("data", "default")), SPLITS[match[1]]
    return "/".join(part for part in parts[:-1] if part not in ("data", "default")), ""


def _endpoint() -> str | None:
    """Return the address of the server from the environment; None: the client's default."""
    return os.environ.get("HF_ENDPOINT") or None


def _download(address: Address, names: list[str], folder: Path, repo_type: str) -> None:
    """Download files of the commit that `folder` is named after; the folder appears when all of them are complete."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, snapshot_download

    commit, endpoint = folder.name, _endpoint()
    unfinished = folder.with_name(f".{commit}{UNFINISHED}")
    snapshot_download(
        address.repository,
        repo_type=repo_type,
        revision=commit,
        allow_patterns=names,
        local_dir=unfinished,
        endpoint=endpoint,
    )
    for name in names:
        url = hf_hub_url(address.repository, name, repo_type=repo_type, revision=commit, endpoint=endpoint)
        _check(unfinished / name, get_hf_file_metadata(url, endpoint=endpoint).etag)
    shutil.rmtree(unfinished / ".cache")  # where the client library notes which files are complete
    sync_folder(unfinished)  # a folder with the name of a commit must have all of its files, also after a power failure
    os.rename(unfinished, folder)


def _check(path: Path, etag: str | None) -> None:
    """Write a downloaded file to the disk; delete and refuse a file whose hash is not its ETag."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        of_git = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
        digest = hashlib.file_digest(file, hashlib.sha256 if len(etag or "") == SHA256 else lambda: of_git).hexdigest()
    if digest != etag:
        path.unlink()
        must = f"{path.name}: the download must have the server's hash, {shown(etag)}"
        raise InputError(f"{must}; it has {digest}. Try again.")


def _reason(error: Exception) -> str:
    """Describe an error of the client library in one line, without a stop at its end."""
    return f"{type(error).__name__}: {reason_of(error)}"
