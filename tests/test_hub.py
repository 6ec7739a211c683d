"""Models at hf:// addresses, downloaded from a local server that breaks off, stalls, fails or sends wrong files."""

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from asr.apps.finetune.collect import collect
from asr.apps.finetune.entry import SourceOptions
from asr.convert import main
from asr.core.checkpoint.address import is_address, parse
from asr.core.checkpoint.bundle import read_bundle
from asr.core.data.manifest import read_manifest
from asr.core.hub.download import _of_split, download, download_dataset, path_of
from asr.errors import InputError
from tests import parakeet
from tests import test_wav2vec2_bert as wav2vec2_bert
from tests.conftest import ROOT
from tests.nemo import as_nemo_3, nemo_files, write_tar
from tests.refusals import refused
from tests.tones import write_corpus

constants = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub: pip install '.[hub]'")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LATER = "f" * 40
SMALL = 1000  # bytes; the ETag of a larger file is its SHA-256, as with git LFS


class Hub:
    """A server of one repository, somebody/model.

    Args:
        files: map of names to contents.

    Attributes:
        commit: the commit of `main`.
        requests: method, path and Range of each request.
        cut_after: for each of the next requests, the number of bytes after which the connection is closed.
        stalls: after the bytes of `cut_after`, keep the connection open and send nothing more.
        failing: answer every request with status 500.
        silent: close every connection without an answer.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.commit = files, COMMIT
        self.requests: list[tuple[str, str, str | None]] = []
        self.cut_after: list[int] = []
        self.etags: dict[str, str] = {}
        self.stalls = self.failing = self.silent = False
        self.ended = threading.Event()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self)

            do_GET = do_HEAD  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.ended.set()
        self.server.shutdown()
        self.server.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.requests.append((request.command, request.path, request.headers["Range"]))
        if self.silent:
            request.close_connection = True
            return None
        if self.failing:
            return self._send(request, 500, b"")
        listed = re.fullmatch(r"/api/(?:models|datasets)/somebody/model/revision/([\w%.-]+)", request.path)
        if listed and listed[1] in ("main", "v1", COMMIT, LATER):
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "somebody/model", "modelId": "somebody/model", "sha": self.commit, "siblings": siblings}
            return self._send(request, 200, json.dumps(info).encode(), {"Content-Type": "application/json"})
        if re.fullmatch(rf"/api/(?:models|datasets)/somebody/model/tree/({COMMIT}|{LATER})\?.*", request.path):
            tree = [
                {"type": "file", "path": name, "size": len(content), "oid": etag(content)}
                for name, content in self.files.items()
            ]
            return self._send(request, 200, json.dumps(tree).encode(), {"Content-Type": "application/json"})
        file = re.fullmatch(r"(?:/datasets)?/somebody/model/resolve/([0-9a-f]{40})/(.+)", request.path)
        if file and file[2] in self.files:
            return self._send_file(request, file[1], file[2])
        code = "RevisionNotFound" if listed else "RepoNotFound"
        return self._send(request, 404, b"", {"X-Error-Code": code, "X-Error-Message": "no such thing"})

    def _send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        request.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def _send_file(self, request: BaseHTTPRequestHandler, commit: str, name: str) -> None:
        content = self.files[name]
        headers = {"ETag": f'"{self.etags.get(name, etag(content))}"', "X-Repo-Commit": commit}
        start = int(re.fullmatch(r"bytes=(\d+)-", request.headers["Range"] or "bytes=0-")[1])  # type: ignore[index]
        if request.command == "HEAD":
            return self._send(request, 200, content, headers)
        body = content[start:]
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers["Content-Length"] = str(len(body))
        most = self.cut_after.pop(0) if self.cut_after else len(body)
        self._send(request, 206 if start else 200, body[:most], headers)
        if most < len(body):
            request.close_connection = True
            if self.stalls:
                request.wfile.flush()
                self.ended.wait(10)
        return None


def etag(content: bytes) -> str:
    """Return the hub's ETag of a file: git's SHA-1 of a small file, the SHA-256 of a large one."""
    if len(content) < SMALL:
        return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    return hashlib.sha256(content).hexdigest()


CARD = b"---\nlanguage: en\nlicense: cc-by-4.0\n---\n# A model\n"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    archive = write_tar(tmp_path / "tiny.nemo", as_nemo_3(nemo_files()))
    served = Hub({"tiny.nemo": archive.read_bytes(), "README.md": CARD, ".gitattributes": b"", "sub/x.json": b"{}"})
    monkeypatch.setenv("HF_ENDPOINT", served.url)
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache" / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # default 10 MB; an incomplete chunk is lost
    # Shorten the pause between two attempts.
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
    yield served
    served.close()


ADDRESS = "hf://somebody/model"


def fetched(hub: Hub) -> list[tuple[str, str | None]]:
    """List the file and the Range of each download request, the archive's first; files are downloaded concurrently."""
    requests = [
        (path.rpartition("/")[2], span)
        for method, path, span in hub.requests
        if method == "GET" and "/api/" not in path
    ]
    return sorted(requests, key=lambda request: request[0] != "tiny.nemo")


def test_an_archive_is_downloaded_once_and_converted(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([ADDRESS, "-o", str(tmp_path / "bundle")]) == 0
    assert fetched(hub) == [("tiny.nemo", None), ("README.md", None)]
    assert f"hf://somebody/model@{COMMIT}, 88 tensors" in capsys.readouterr().out
    card = read_bundle(tmp_path / "bundle").card
    assert f"from hf://somebody/model@{COMMIT}, written by NeMo 1.23.0" in card
    assert "Trained by somebody. Licence: its model card says cc-by-4.0." in card
    again = download(ADDRESS)
    assert again.path.read_bytes() == hub.files["tiny.nemo"]
    assert len(fetched(hub)) == 2


def test_a_model_folder_of_the_transformers_library_is_downloaded_and_converted(hub: Hub, tmp_path: Path) -> None:
    folder = parakeet.save(tmp_path / "parakeet")
    hub.files = {file.name: file.read_bytes() for file in folder.iterdir()} | {
        "README.md": CARD,
        "pytorch_model.bin": b"",
    }
    assert main([ADDRESS, "-o", str(tmp_path / "bundle")]) == 0
    read = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
    assert {name for name, _ in fetched(hub)} == read | {"tokenizer.json", "tokenizer_config.json"}
    assert "Licence: its model card says cc-by-4.0." in read_bundle(tmp_path / "bundle").card


def test_a_model_folder_with_a_vocab_json_is_downloaded_and_converted(hub: Hub, tmp_path: Path) -> None:
    folder = wav2vec2_bert.save(tmp_path / "theirs")
    hub.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert main([ADDRESS, "-o", str(tmp_path / "bundle")]) == 0
    assert "vocab.json" in {name for name, _ in fetched(hub)}


def test_a_cached_commit_needs_no_server(hub: Hub) -> None:
    path = path_of(f"{ADDRESS}@{COMMIT}")
    hub.silent = True
    assert path_of(f"{ADDRESS}@{COMMIT}") == path


def test_if_the_server_does_not_answer_the_cached_files_are_used(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    path = path_of(ADDRESS)
    hub.silent = True
    assert path_of(ADDRESS) == path
    assert "the server does not answer" in caplog.text


def test_if_the_server_does_not_answer_a_deleted_model_is_not_used(hub: Hub) -> None:
    shutil.rmtree(path_of(ADDRESS).parent)
    hub.silent = True
    with refused(InputError, f"{ADDRESS} ... server must answer"):
        path_of(ADDRESS)


def test_a_revision_that_moved_to_another_commit_is_downloaded(hub: Hub) -> None:
    before = path_of(f"{ADDRESS}@v1")
    hub.files = {"other.nemo": b"x"}
    hub.commit = LATER
    after = path_of(f"{ADDRESS}@v1")
    assert (before.parent.name, after.parent.name) == (COMMIT, LATER)
    assert after.read_bytes() == b"x"


@pytest.mark.parametrize("stalls", [False, True])
def test_an_interrupted_download_continues_where_it_stopped(hub: Hub, stalls: bool) -> None:
    del hub.files["README.md"]
    hub.cut_after, hub.stalls = [5000, 7000], stalls
    path = path_of(ADDRESS)
    assert path.read_bytes() == hub.files["tiny.nemo"]
    assert fetched(hub)[:3] == [("tiny.nemo", None), ("tiny.nemo", "bytes=5000-"), ("tiny.nemo", "bytes=12000-")]


def test_after_a_failed_download_only_missing_files_are_downloaded(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [len(CARD)] * 20  # all of the card, and no more than that of the archive, is sent at once
    hub.files["tiny.nemo"] *= 10
    with refused(InputError, f"{ADDRESS} ... server must answer"):
        path_of(ADDRESS)
    assert [path.name for path in (tmp_path / "cache").rglob("*.nemo")] == []
    hub.requests, hub.cut_after = [], []
    assert path_of(ADDRESS).read_bytes() == hub.files["tiny.nemo"]
    assert fetched(hub) == [("tiny.nemo", None)]
    assert list((tmp_path / "cache").rglob("*.unfinished")) == []


@pytest.mark.parametrize("name", ["tiny.nemo", "README.md"])
def test_a_file_that_differs_from_its_announced_hash_is_refused_and_deleted(
    hub: Hub, name: str, tmp_path: Path
) -> None:
    wrong_etag = hub.etags[name] = etag(hub.files[name] + b".")
    with refused(InputError, f"{name} ... server's hash ... {wrong_etag} ... {etag(hub.files[name])}", cure="again"):
        path_of(ADDRESS)
    assert name not in {path.name for path in (tmp_path / "cache").rglob("*")}
    assert list((tmp_path / "cache").rglob(COMMIT)) == []
    del hub.etags[name]
    assert path_of(ADDRESS).is_file()


def test_an_etag_that_is_not_a_hash_is_refused(hub: Hub) -> None:
    hub.etags["tiny.nemo"] = "abc"
    with refused(InputError, "tiny.nemo ... server's hash ... 'abc'"):
        path_of(ADDRESS)


@pytest.mark.parametrize("address", ["hf://somebody/other", "hf://nobody/model", "hf://somebody/model@v2"])
def test_an_absent_model_is_reported_in_one_line(hub: Hub, address: str, tmp_path: Path) -> None:
    with refused(InputError, f"{address} ... must exist ... 404"):
        main([address, "-o", str(tmp_path / "bundle")])
    assert not (tmp_path / "bundle").exists()


def test_a_failing_server_is_reported_in_one_line(hub: Hub) -> None:
    hub.failing = True
    with refused(InputError, f"{ADDRESS} ... server must answer ... 500"):
        path_of(ADDRESS)


def test_a_full_disk_is_reported_in_one_line_and_the_model_can_be_downloaded_later(hub: Hub, tmp_path: Path) -> None:
    room = 10_000  # bytes; this limit on the size of a file simulates a full disk
    command = [sys.executable, "-m", "asr.convert", ADDRESS, "-o", str(tmp_path / "bundle")]
    ended = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "cache")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
        capture_output=True,
        text=True,
        check=False,
    )
    where = tmp_path / "cache" / "asr" / "somebody" / "model"
    message = f"error: {ADDRESS}: the disk must have room for the model, in {where}; File too large."
    assert ended.stderr.startswith(message)
    assert ended.stderr.count("\n") == 1
    assert (ended.returncode, (tmp_path / "bundle").exists()) == (1, False)
    assert path_of(ADDRESS).read_bytes() == hub.files["tiny.nemo"]


def test_a_downloaded_bundle_is_in_a_folder_of_plain_files(hub: Hub, tmp_path: Path) -> None:
    main([str(tmp_path / "tiny.nemo"), "-o", str(tmp_path / "bundle")])
    hub.files |= {path.name: path.read_bytes() for path in (tmp_path / "bundle").iterdir()}
    hub.files |= {"../../evil.json": b"{}", ".hidden.json": b"{}", "onnx.bin": b""}
    folder = path_of(ADDRESS)
    assert {path.name for path in folder.iterdir()} == {path.name for path in (tmp_path / "bundle").iterdir()}
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert read_bundle(folder).config == read_bundle(tmp_path / "bundle").config


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"README.md": b""}, "bundle ... .nemo ... holds 'README.md'"),
        ({"a.nemo": b"", "b.nemo": b""}, "one .nemo ... holds 'a.nemo', 'b.nemo'"),
        ({".nemo": b"", "../a.nemo": b""}, "one .nemo ... holds nothing"),
    ],
)
def test_a_repository_without_a_model_is_reported_in_one_line(hub: Hub, files: dict[str, bytes], named: str) -> None:
    hub.files = files
    with refused(InputError, named):
        path_of(ADDRESS)


@pytest.mark.parametrize(
    "text", ["hf://", "hf://a", "hf://a/b/c", "hf://a/..", "hf://a/b@", "hf://a/b@../c", "hf://a b/c"]
)
def test_an_invalid_address_is_reported_in_one_line(text: str) -> None:
    with refused(InputError, "hf://OWNER/NAME", got=text):
        path_of(text)


def test_a_local_path_is_returned_unchanged() -> None:
    assert path_of("runs/x") == path_of(Path("runs/x")) == Path("runs/x")
    assert not is_address("runs/x")
    assert parse("hf://a/b.c@refs/pr/1") == ("a", "b.c", "refs/pr/1")


DATASET = "hf://datasets/somebody/model"


def parquet(folder: Path, texts: list[str]) -> bytes:
    """Write recordings and their texts as a Parquet file of a data set; return its bytes."""
    import pyarrow
    import pyarrow.parquet

    write_corpus(folder, {"part": texts})
    audio = [{"bytes": Path(each.audio_filepath).read_bytes()} for each in read_manifest(folder / "part.jsonl")]
    table = pyarrow.table({"audio": audio, "sentence": texts})
    pyarrow.parquet.write_table(table, folder / "part.parquet", compression="zstd")
    return (folder / "part.parquet").read_bytes()


def test_a_split_of_a_data_set_is_downloaded_once_and_read(hub: Hub, tmp_path: Path) -> None:
    train, test = ["ab cd", "ef"], ["fa"]
    hub.files = {
        "data/train-00000-of-00002.parquet": parquet(tmp_path / "a", train[:1]),
        "data/train-00001-of-00002.parquet": parquet(tmp_path / "b", train[1:]),
        "test/0000.parquet": parquet(tmp_path / "c", test),
        "README.md": CARD,
    }
    for address, texts in ((DATASET, train), (f"{DATASET}:test", test), (f"{DATASET}@{COMMIT}:train", train)):
        folder = download_dataset(address)
        collected = collect(folder, SourceOptions(audio_dir=tmp_path / "audio"), None, pytest.fail)
        assert [each.text for each in collected.utterances] == texts
    assert len(fetched(hub)) == 3


def test_a_data_set_without_the_split_is_refused(hub: Hub) -> None:
    hub.files = {"data/train-0.parquet": b"", "audio.zip": b""}
    with refused(InputError, f"{DATASET}:dev ... split dev", cure="@refs/convert/parquet"):
        download_dataset(f"{DATASET}:dev")
    hub.files = {"audio.zip": b""}
    with refused(InputError, f"{DATASET} ... audio.zip"):
        download_dataset(DATASET)


@pytest.mark.parametrize(
    ("names", "split", "expected"),
    [
        (["default/partial-train/0.parquet", "default/partial-test/0.parquet"], "train", [0]),
        (["data/dset-0.parquet", "data/eval-0.parquet"], "train", [0]),
        (["data/dset-0.parquet", "data/eval-0.parquet"], "test", [1]),
        (["data/lang=de/train-0.parquet"], "train", [0]),
        (["train/test-0.parquet", "train/0.parquet", "training/dev.parquet"], "train", [1]),
        (["de/train/0.parquet", "de/test/0.parquet", "en/train/0.parquet"], "de/train", [0]),
        (["a.parquet", "deep/b.parquet", "c.json"], "deep/train", [1]),
    ],
)
def test_a_split_is_the_last_name_of_a_split_on_a_path(names: list[str], split: str, expected: list[int]) -> None:
    assert _of_split(split, names) == [names[index] for index in expected]


def test_a_configuration_must_be_named_if_there_are_several() -> None:
    with refused(InputError, "de_de ... en_us", cure=":CONFIG/train"):
        _of_split("train", ["de_de/train/0.parquet", "en_us/train/0.parquet"])


@pytest.mark.parametrize("address", ["hf://datasets/name", "hf://datasets/a/b:../c", "hf://datasets/a/../b"])
def test_a_wrong_address_of_a_data_set_is_refused(address: str) -> None:
    with refused(InputError, "address", got=address):
        download_dataset(address)
