"""Shards written by other toolkits are indexed in place, and give the audio of the original files."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import webdataset

from asr import shards
from asr.base.storage.store import write_whole
from asr.core.data.dataset import load_utterance
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import Utterance, read_manifest
from asr.errors import InputError
from tests.refusals import refused
from tests.storing import FaultyProxy, index
from tests.tones import SAMPLE_RATE


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    header = tarfile.TarInfo(name)
    header.size = len(content)
    archive.addfile(header, io.BytesIO(content))


def tar_of(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            add(archive, name, content)
    return path


def assert_reads_as(index_path: str | Path, files: list[Utterance]) -> None:
    utterances = IndexCache().utterances(index_path)
    assert [(each.id, each.text) for each in utterances] == [(file.id, file.text) for file in files]
    assert utterances.durations.tolist() == pytest.approx([file.duration for file in files], abs=1e-6)
    for utterance, file in zip(utterances, files, strict=True):
        assert torch.equal(load_utterance(utterance, SAMPLE_RATE), load_utterance(file, SAMPLE_RATE))


@pytest.mark.parametrize("text_suffix", ["json", "txt"])
def test_shards_written_by_webdataset_are_read(text_suffix: str, tones: Path, tmp_path: Path) -> None:
    files = read_manifest(tones / "train.jsonl")
    with webdataset.ShardWriter(str(tmp_path / "web-%04d.tar"), maxcount=10, verbose=0) as writer:
        for file in files:
            sample = {"__key__": file.id, Path(file.audio_filepath).suffix[1:]: Path(file.audio_filepath).read_bytes()}
            text = (
                {"json": {"text": file.text, "duration": file.duration}}
                if text_suffix == "json"
                else {"txt": file.text}
            )
            writer.write(sample | text)
    index(tmp_path / "web-{0000..0004}.tar", "-o", tmp_path / "index.arrow")
    assert_reads_as(tmp_path / "index.arrow", files)


def nemo_name(file: Utterance) -> str:
    """Flatten a path as in NeMo's script convert_to_tarred_audio_dataset.py, which is not in NeMo's package."""
    path = Path(file.audio_filepath)
    return str(path.with_suffix("")).replace("/", "_").replace(".", "_") + path.suffix


def test_segments_in_tarred_audio_of_nemo_are_refused(tones: Path, tmp_path: Path) -> None:
    """Without --slice_with_offset, NeMo stores one file for a recording; its second segment is NAME-sub1."""
    file = read_manifest(tones / "train.jsonl")[0]
    tar_of(tmp_path / "audio_0.tar", {nemo_name(file): Path(file.audio_filepath).read_bytes()})
    manifest = tmp_path / "tarred_audio_manifest.json"
    first = {"audio_filepath": nemo_name(file), "offset": 0.25, "duration": 0.5, "text": "a", "shard_id": 0}
    arguments = (tmp_path / "audio_0.tar", "--nemo-manifest", manifest, "-o", tmp_path / "index.arrow")
    for line, message in (
        (first, "manifest.json:1 ... offset ... 0.25 ... --slice_with_offset"),
        (first | {"audio_filepath": "x-sub1.wav", "offset": 0}, "audio_0.tar ... 'x-sub1.wav'"),
    ):
        manifest.write_text(json.dumps(line) + "\n")
        with refused(InputError, message):
            index(*arguments)
    manifest.write_text(json.dumps(first | {"offset": 0, "duration": file.duration}) + "\n")
    index(*arguments)


def test_tarred_audio_of_nemo_is_read_in_the_order_of_its_manifest(tones: Path, tmp_path: Path) -> None:
    files = read_manifest(tones / "train.jsonl")
    lines = []
    for number in range(3):
        members = {}
        for file in files[number::3]:
            name = nemo_name(file)
            members[name] = Path(file.audio_filepath).read_bytes()
            lines.append({"audio_filepath": name, "duration": file.duration, "text": file.text, "shard_id": number})
        tar_of(tmp_path / f"audio_{number}.tar", members)
    lines.reverse()
    manifest = tmp_path / "tarred_audio_manifest.json"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    index(tmp_path / "audio_{0..2}.tar", "--nemo-manifest", manifest, "-o", tmp_path / "index.arrow")
    by_name = {nemo_name(file): file for file in files}
    expected = [by_name[str(line["audio_filepath"])] for line in lines]
    utterances = IndexCache().utterances(tmp_path / "index.arrow")
    assert [utterance.text for utterance in utterances] == [file.text for file in expected]
    for utterance, file in zip(utterances, expected, strict=True):
        assert torch.equal(load_utterance(utterance, SAMPLE_RATE), load_utterance(file, SAMPLE_RATE))


def test_shards_in_an_object_store_are_indexed_in_place(tones: Path, tmp_path: Path, s3: FaultyProxy) -> None:
    files = read_manifest(tones / "valid.jsonl")
    members = {}
    for file in files:
        members[f"{file.id}.flac"] = Path(file.audio_filepath).read_bytes()
        members[f"{file.id}.json"] = json.dumps({"text": file.text, "duration": file.duration}).encode()
    write_whole("s3://bucket/foreign/a.tar", tar_of(tmp_path / "a.tar", members))
    index("s3://bucket/foreign/*.tar", "-o", "s3://bucket/foreign/index.arrow")
    assert_reads_as("s3://bucket/foreign/index.arrow", files)


def test_malicious_and_damaged_tar_files_are_reported_in_one_line(tones: Path, tmp_path: Path) -> None:
    audio = Path(read_manifest(tones / "valid.jsonl")[0].audio_filepath).read_bytes()
    good = {"a.flac": audio, "a.txt": b"abc"}
    whole = tar_of(tmp_path / "whole.tar", good).read_bytes()
    huge = bytearray(whole)
    header = tarfile.TarInfo("a.flac")
    header.size = 1 << 40
    huge[:512] = header.tobuf(tarfile.GNU_FORMAT)
    cases = {
        "cut": (whole[:700], "tar file"),
        "huge": (bytes(huge), "complete tar ... 'a.flac'"),
        "noise": (b"no tar file at all" * 100, "uncompressed tar"),
        "empty": (b"", "uncompressed tar"),
        "lonely": (
            tar_of(tmp_path / "x", {"a.txt": b"abc"}).read_bytes(),
            "a: a sample ... one audio file",
        ),
        "silent": (tar_of(tmp_path / "x", {"a.flac": b"abc", "a.txt": b""}).read_bytes(), "duration"),
        "listed": (tar_of(tmp_path / "x", {"a.flac": audio, "a.json": b"[1]"}).read_bytes(), "JSON"),
        "twice": (
            tar_of(tmp_path / "x", good | {"b/a.flac": audio, "b/a.json": b'{"id": "a", "text": "b"}'}).read_bytes(),
            "ids ... 'a'",
        ),
        "textless": (tar_of(tmp_path / "x", {"a.flac": audio}).read_bytes(), "missing text"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / f"{name}.tar").write_bytes(content)
        with refused(InputError, message):
            index(tmp_path / f"{name}.tar", "-o", tmp_path / "index.arrow")
        assert not (tmp_path / "index.arrow").exists()


def test_an_index_must_be_in_the_folder_of_its_shards_or_in_a_parent(tones: Path, tmp_path: Path) -> None:
    audio = Path(read_manifest(tones / "valid.jsonl")[0].audio_filepath).read_bytes()
    (tmp_path / "in" / "side").mkdir(parents=True)
    shard = tar_of(tmp_path / "in" / "side" / "a.tar", {"a.flac": audio, "a.txt": b"abc"})
    index(shard, "-o", tmp_path / "in" / "index.arrow")
    assert IndexCache().utterances(tmp_path / "in" / "index.arrow")[0].text == "abc"
    (tmp_path / "out").mkdir()
    with refused(InputError, "parent folder"):
        index(shard, "-o", tmp_path / "out" / "index.arrow")
    with refused(InputError, "--output ... of the index"):
        index(shard, "-o", tmp_path / "in")


def test_a_nemo_manifest_needs_index_only(tmp_path: Path) -> None:
    with refused(InputError, "--nemo-manifest ... --index-only"):
        shards.main(["a.jsonl", "--nemo-manifest", "x", "-o", str(tmp_path / "index.arrow")])


def test_parquet_files_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"")
    with refused(InputError, "tar files ... a.parquet", cure="recipes.convert parquet"):
        index(tmp_path / "a.parquet", "-o", tmp_path / "index.arrow")
