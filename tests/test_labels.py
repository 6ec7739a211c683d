"""Labels of utterances, such as their language: manifest, index, shards and fingerprint."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from asr import shards
from asr.core.data import index as index_module
from asr.core.data.fingerprint import fingerprint, stored_fingerprint
from asr.core.data.index import record_batches
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.data.utterances import Utterances
from asr.errors import InputError
from tests.conftest import resolved
from tests.refusals import refused

LABELS = ["language", "domain"]
UTTERANCES = [
    Utterance("a.wav", 1.0, "ja", "a", labels={"language": "de", "domain": "phone"}),
    Utterance("b.wav", 2.0, "yes", "b", labels={"language": "en"}),
    Utterance("c.wav", 3.0, "oui", "c"),
]


@pytest.fixture
def cache(tmp_path: Path) -> IndexCache:
    return IndexCache(tmp_path / "cache")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    write_manifest(tmp_path / "train.jsonl", [replace(each, audio_filepath=f"/{each.id}.wav") for each in UTTERANCES])
    return tmp_path / "train.jsonl"


def test_a_manifest_gives_the_labels_that_the_reader_names(manifest: Path) -> None:
    assert [each.labels for each in read_manifest(manifest, ["language"])] == [
        {"language": "de"},
        {"language": "en"},
        {},
    ]
    assert all(each.labels == {} for each in read_manifest(manifest))


def test_an_index_has_the_labels_of_its_manifest(manifest: Path, cache: IndexCache) -> None:
    for _ in range(2):  # written, then read from disk
        utterances = cache.utterances(manifest, LABELS)
        assert list(utterances) == read_manifest(manifest, LABELS)
        assert list(utterances.label("language")) == ["de", "en", None]
        assert list(utterances[1:].label("domain")) == [None, None]
    assert cache.utterances(manifest)[0].labels == {}, "the index without labels is another file"


def test_manifests_with_and_without_labels_are_joined(manifest: Path, cache: IndexCache) -> None:
    joined = Utterances.joined([cache.utterances(manifest), cache.utterances(manifest, ["language"])])
    assert list(joined.label("language")) == [None, None, None, "de", "en", None]
    assert joined.labels == ["language"]


@pytest.mark.parametrize("value", [3, "", ["de"], "\ud800"])
def test_a_label_that_is_not_a_text_is_refused_with_its_line(value: object, tmp_path: Path) -> None:
    line = {"audio_filepath": "a.wav", "duration": 1, "text": "a", "language": value}
    (tmp_path / "m.jsonl").write_text(json.dumps(line) + "\n")
    with refused(InputError, "m.jsonl:1: language"):
        read_manifest(tmp_path / "m.jsonl", ["language"])
    assert len(read_manifest(tmp_path / "m.jsonl")) == 1


def test_a_label_changes_the_fingerprint_only_where_it_is_named(cache: IndexCache, manifest: Path) -> None:
    labelled, plain = cache.utterances(manifest, LABELS), cache.utterances(manifest)
    changed = [replace(each, labels={"language": "en"}) for each in labelled]
    assert stored_fingerprint(labelled, cache, "") == fingerprint(changed) == fingerprint(plain)
    assert stored_fingerprint(labelled, cache, "", ["language"]) == fingerprint(labelled, ["language"])
    assert len({fingerprint(rows, ["language"]) for rows in (labelled, plain, changed)}) == 3


def test_an_index_of_format_1_which_has_no_labels_is_read(tmp_path: Path, cache: IndexCache) -> None:
    [batch] = record_batches([replace(each, labels={}) for each in UTTERANCES])
    metadata = {index_module.FORMAT: b"1", index_module.SOURCE: b"abc"}
    with pa.ipc.new_file(str(tmp_path / "index.arrow"), batch.schema.with_metadata(metadata)) as writer:
        writer.write_batch(batch)
    utterances = cache.utterances(tmp_path / "index.arrow", ["language"])
    assert list(utterances.ids) == ["a", "b", "c"]
    assert list(utterances.label("language")) == [None, None, None]


def test_shards_have_the_labels_that_the_command_names(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "MIN_MEGABYTES", 0.0)
    utterances = [replace(each, labels={"language": "xx"}) for each in read_manifest(tones / "valid.jsonl")]
    write_manifest(tmp_path / "m.jsonl", utterances)
    for label in ([], ["--label", "language"]):
        output = tmp_path / f"out{len(label)}"
        shards.main([str(tmp_path / "m.jsonl"), "-o", str(output), "--shard-megabytes", "0.2", *label])
        index = IndexCache().utterances(output / "index.arrow")
        assert [each.labels for each in index] == [({"language": "xx"} if label else {})] * len(utterances)
    again = tmp_path / "out2" / "again.arrow"  # from the tar files alone
    shards.main([str(tmp_path / "out2" / "*.tar"), "--index-only", "-o", str(again), "--label", "language"])
    assert set(IndexCache().utterances(again).label("language")) == {"xx"}


def test_a_key_with_another_meaning_is_not_a_label(tmp_path: Path) -> None:
    with refused(InputError, "--label must be ... language"):
        shards.main([str(tmp_path / "m.jsonl"), "-o", str(tmp_path / "out"), "--label", "speaker"])


def test_every_corpus_can_name_labels() -> None:
    assert resolved("corpus.labels=[language]")["corpus"]["labels"] == ["language"]
