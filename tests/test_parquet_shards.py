"""Parquet files of Hugging Face's datasets are indexed in place, and give the audio of the original files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from asr import shards
from asr.data.dataset import load_utterance
from asr.data.index_cache import IndexCache
from asr.data.manifest import Utterance, read_manifest
from asr.errors import InputError, StoreError
from asr.storage.store import write_whole
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.storing import FaultyProxy, index
from tests.tones import SAMPLE_RATE

# The library datasets does not compress the columns of audio; it compresses the others.
UNCOMPRESSED = {"audio.bytes": "none", "audio.path": "none"}


@pytest.fixture(scope="module")
def files(tones: Path) -> list[Utterance]:
    return read_manifest(tones / "train.jsonl")


def table(files: Sequence[Utterance], **columns: Any) -> pa.Table:
    """Make a table in the format of the library datasets: the content of each audio file in a struct."""
    audio = [{"bytes": Path(file.audio_filepath).read_bytes(), "path": f"{file.id}.wav"} for file in files]
    rest = {"id": [file.id for file in files], "text": [file.text for file in files]} | columns
    return pa.table({"audio": audio} | {name: values for name, values in rest.items() if values is not None})


def assert_reads_as(index_path: str | Path, files: Sequence[Utterance], ids: Sequence[str] = ()) -> None:
    utterances = IndexCache().utterances(index_path)
    assert list(utterances.ids) == (list(ids) or [file.id for file in files])
    assert list(utterances.texts) == [file.text for file in files]
    for utterance, file in zip(utterances, files, strict=True):
        assert utterance.extent is not None
        assert utterance.extent.num_bytes == Path(file.audio_filepath).stat().st_size, "only these ranges are read"
        assert torch.equal(load_utterance(utterance, SAMPLE_RATE), load_utterance(file, SAMPLE_RATE))


@pytest.mark.slow
def test_files_written_by_the_library_datasets_are_read(files: list[Utterance], tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed: pip install -e '.[test-all]'")
    rows = [
        {"audio": {"bytes": Path(file.audio_filepath).read_bytes(), "path": None}, "id": file.id, "sentence": file.text}
        for file in files
    ]
    dataset = datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio(decode=False))
    for number in range(2):
        part = dataset.shard(2, number, contiguous=True)
        part.to_parquet(tmp_path / f"train-{number:05d}-of-00002.parquet", batch_size=7)
    index(tmp_path / "train-*.parquet", "--text-column", "sentence", "-o", tmp_path / "index.arrow")
    assert_reads_as(tmp_path / "index.arrow", files)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_dictionaries_many_row_groups_and_both_versions_of_data_pages_are_read(
    version: str, files: list[Utterance], tmp_path: Path
) -> None:
    twice = [*files[:20], *files[:20]]  # repeated values are stored once, in a dictionary
    ids = [f"id-{number}" for number in range(40)]
    for name, options in (
        ("plain", {"use_dictionary": False, "row_group_size": 1}),
        ("dictionary", {"use_dictionary": ["audio.bytes"], "row_group_size": 33}),
        ("lengths", {"use_dictionary": False, "column_encoding": {"audio.bytes": "DELTA_LENGTH_BYTE_ARRAY"}}),
    ):
        path = tmp_path / f"{name}.parquet"
        columns = table(twice, id=ids, speaker_id=list(range(40)))
        pq.write_table(columns, path, compression=UNCOMPRESSED, data_page_version=version, **options)
        index(path, "-o", tmp_path / f"{name}.arrow")
        assert_reads_as(tmp_path / f"{name}.arrow", twice, ids)
        assert IndexCache().utterances(tmp_path / f"{name}.arrow")[3].speaker == "3"


def test_rows_without_ids_are_named_by_file_and_number(files: list[Utterance], tmp_path: Path) -> None:
    pq.write_table(table(files[:3], id=None), tmp_path / "a.b.parquet", compression=UNCOMPRESSED)
    index(tmp_path / "a.b.parquet", "-o", tmp_path / "index.arrow")
    assert_reads_as(tmp_path / "index.arrow", files[:3], ["a.b-0", "a.b-1", "a.b-2"])


@pytest.mark.slow
def test_training_on_parquet_in_a_store_gives_the_same_weights_as_on_files(
    tones: Path, files: list[Utterance], tmp_path: Path, s3: FaultyProxy
) -> None:
    pq.write_table(table(files), tmp_path / "a.parquet", compression=UNCOMPRESSED, row_group_size=10)
    write_whole("s3://bucket/hf/a.parquet", tmp_path / "a.parquet")
    index("s3://bucket/hf/*.parquet", "-o", "s3://bucket/hf/index.arrow")
    assert_reads_as("s3://bucket/hf/index.arrow", files)
    weights = []
    for name, manifest in (("files", "train.jsonl"), ("parquet", "s3://bucket/hf/index.arrow")):
        run = [f"run_dir={tmp_path / name}", f"corpus.train=[{manifest}]", "trainer.max_epochs=1"]
        train(settings_with(*TINY, *tone_corpus(tones), "augment=[speed_perturb]", *run))
        [path] = (tmp_path / name / "bundle").glob("*.safetensors")
        weights.append(path.read_bytes())
    assert weights[0] == weights[1]


def test_unsuitable_or_invalid_files_are_reported_in_one_line(files: list[Utterance], tmp_path: Path) -> None:
    few = files[:3]
    none = [{"bytes": None, "path": few[0].audio_filepath}, {"bytes": b"x"}, None]
    noise = [{"bytes": b"no audio" * 99, "path": ""} for _ in few]
    cases: dict[str, tuple[pa.Table, dict[str, Any], str]] = {
        "gzip": (table(few), {"compression": "gzip"}, r"audio must be uncompressed.*require reading .* MB"),
        "paths": (table(few, audio=none), {}, "row 0: audio must be in the Parquet file; the row has .*only its path"),
        "noise": (table(few, audio=noise), {}, r"noise\.parquet: row 0"),
        "textless": (table(few, text=None), {}, "column of texts 'text'; it has the columns audio, id. Name another"),
        "gaps": (table(few, text=["a", None, "b"]), {}, "row 1: text must be a string; got None"),
        "bomb": (table(few, text=["a", "b" * 2_000_000, "c"]), {"use_dictionary": False}, "row 1: texts must have at"),
        "twice": (table(few, id=["a", "b", "a"]), {}, "ids must be unique; 'a'"),
        "silent": (
            table(few).drop_columns(["audio"]),
            {},
            "one column of audio.*got none: it has the columns id, text",
        ),
        "double": (table(few).append_column("b", table(few)["audio"]), {}, "one column of audio.*got audio, b"),
        "empty": (table([]), {}, "must contain an utterance|one column of audio"),
    }
    for name, (rows, options, message) in cases.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(rows, path, **({"compression": "none"} | options))
        with pytest.raises(InputError, match=message) as caught:
            index(path, "-o", tmp_path / "index.arrow")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "index.arrow").exists()


def test_a_file_truncated_anywhere_is_reported_in_one_line(files: list[Utterance], tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table(files[:3]), path, compression=UNCOMPRESSED)
    whole = path.read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    cut_inside = whole[: len(whole) - footer - 1000] + whole[-footer:]  # the footer's offsets are wrong
    for content in (b"", b"PAR1", whole[:-1], whole[: len(whole) // 2], cut_inside, whole[:1000] + whole[-footer:]):
        path.write_bytes(content)
        with pytest.raises((InputError, StoreError), match=r"a\.parquet: ") as caught:
            index(path, "-o", tmp_path / "index.arrow")
        assert "\n" not in str(caught.value)
    with pytest.raises(StoreError, match=r"absent\.parquet"):
        index(tmp_path / "absent.parquet", "-o", tmp_path / "index.arrow")


def test_options_of_other_kinds_of_shards_are_refused(tmp_path: Path) -> None:
    for arguments, message in (
        (["--index-only", "a.parquet", "b.tar"], "needs shards of one format; got .parquet files and b.tar"),
        (["--index-only", "b.tar", "--text-column", "x"], "--text-column needs .parquet files; got b.tar"),
        (["--index-only", "b.tar", "--text-column", "x", "--nemo-manifest", "m"], "must not be combined"),
        (["a.jsonl", "--text-column", "x"], "--text-column needs --index-only"),
        (["a.jsonl", "--lhotse-cuts", "x"], "--lhotse-cuts needs --index-only"),
    ):
        with pytest.raises(InputError, match=message):
            shards.main([*arguments, "-o", str(tmp_path / "index.arrow")])
