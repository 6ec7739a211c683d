"""Shards and files give equal samples and training results; killed writers continue; shards must match their index."""

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from asr import shards
from asr.apps.shards.writer import encoded_audio
from asr.base.audio.load import audio_info, load_waveform
from asr.base.storage import store
from asr.core.data.dataset import load_utterance
from asr.core.data.index_cache import IndexCache, check_shards
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.data.utterances import Utterances
from asr.errors import InputError, StoreError
from asr.evaluate import main as evaluate
from asr.train import train
from asr.transcribe import main as transcribe
from tests.conftest import ROOT, TINY, settings_with, tone_corpus
from tests.refusals import refused
from tests.storing import FaultyProxy
from tests.tones import SAMPLE_RATE


def write_shards(manifest: Path, output: Path, *options: str) -> Utterances:
    """Write shards, and open their index."""
    assert shards.main([str(manifest), "-o", str(output), *options]) == 0
    return IndexCache().utterances(output / "index.arrow")


def content_of(folder: Path) -> dict[str, bytes]:
    """Read all files of a folder, by name."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MIN_MEGABYTES", 0.0)


def waveforms(utterances: Sequence[Utterance], sample_rate: int = SAMPLE_RATE) -> list[torch.Tensor]:
    return [load_utterance(utterance, sample_rate) for utterance in utterances]


def test_audio_in_shards_equals_the_files_byte_for_byte(tones: Path, tmp_path: Path) -> None:
    files = read_manifest(tones / "train.jsonl")
    sharded = write_shards(tones / "train.jsonl", tmp_path / "out", "--shard-megabytes", "0.3")
    assert len(list((tmp_path / "out").glob("train-*.tar"))) > 3
    for file, utterance in zip(files, sharded, strict=True):
        assert replace(utterance, audio_filepath="", extent=None) == replace(file, audio_filepath="")
        assert utterance.extent is not None
        with open(utterance.audio_filepath, "rb") as shard:
            shard.seek(utterance.extent.start)
            assert shard.read(utterance.extent.num_bytes) == Path(file.audio_filepath).read_bytes()


def test_other_programs_read_the_shards_as_webdatasets(tones: Path, tmp_path: Path) -> None:
    files = read_manifest(tones / "valid.jsonl")
    write_shards(tones / "valid.jsonl", tmp_path / "out", "--shard-megabytes", "0.2")
    samples: dict[str, dict[str, bytes]] = {}
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                key, _, suffix = member.name.partition(".")
                content = archive.extractfile(member)
                assert content is not None
                samples.setdefault(key, {})[suffix] = content.read()
    assert list(samples) == [f"{row:09d}" for row in range(len(files))]
    for sample, file in zip(samples.values(), files, strict=True):
        entry = json.loads(sample["json"])
        assert (entry["id"], entry["text"], entry["duration"]) == (file.id, file.text, file.duration)
        [audio] = [content for suffix, content in sample.items() if suffix != "json"]
        assert audio == Path(file.audio_filepath).read_bytes()


@pytest.mark.parametrize(
    ("suffix", "subtype", "channels"),
    [("flac", "PCM_16", 1), ("flac", "PCM_24", 2), ("wav", "FLOAT", 1), ("wav", "PCM_16", 2), ("ogg", "VORBIS", 1)],
)
def test_segments_of_long_files_are_cut_without_loss(suffix: str, subtype: str, channels: int, tmp_path: Path) -> None:
    rate = 22050  # resampled when read
    noise = np.random.default_rng(0).uniform(-1, 1, (5 * rate, channels)) * 0.9
    path = tmp_path / f"long.{suffix}"
    soundfile.write(path, noise, rate, subtype=subtype)
    times = [(0.0, 1.23456), (1.23456, 2.0), (3.5, 1.5)]
    segments = [
        Utterance(str(path), seconds, "a", f"s{place}", offset=offset) for place, (offset, seconds) in enumerate(times)
    ]
    write_manifest(tmp_path / "long.jsonl", segments)
    sharded = write_shards(tmp_path / "long.jsonl", tmp_path / "out")
    for expected, actual in zip(waveforms(segments), waveforms(sharded), strict=True):
        assert torch.equal(expected, actual)


def test_integer_samples_are_written_as_flac_and_others_unchanged() -> None:
    generator = torch.Generator().manual_seed(0)
    integers = torch.randint(-(2**15), 2**15, (1000,), generator=generator)
    finer = torch.randint(-(2**23), 2**23, (1000,), generator=generator)
    for waveform, suffix in (
        (integers / 2**15, ".flac"),
        (finer / 2**23, ".flac"),
        (torch.rand(1000, generator=generator) * 3, ".wav"),
        (torch.tensor([1.0, -1.0]), ".wav"),  # 1.0 is not a 24-bit sample
    ):
        content, written = encoded_audio(waveform, 8000, opus=False)
        assert written == suffix
        assert torch.equal(load_waveform("x", 8000, content=content), waveform)


def test_a_shard_takes_no_audio_that_lost_samples_when_it_was_encoded(
    tones: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "asr.apps.shards.writer.encoded_audio",
        lambda waveform, sample_rate, opus: encoded_audio(waveform[:-1], sample_rate, opus),
    )
    first = read_manifest(tones / "valid.jsonl")[0]
    with refused(InputError, first.audio_filepath):
        write_shards(tones / "valid.jsonl", tmp_path / "out", "--opus")
    assert not list((tmp_path / "out").glob("*.arrow"))


def test_opus_is_smaller_and_has_nearly_the_same_length(tones: Path, tmp_path: Path) -> None:
    files = read_manifest(tones / "valid.jsonl")
    sharded = write_shards(tones / "valid.jsonl", tmp_path / "out", "--opus")
    for file, utterance in zip(files, sharded, strict=True):
        assert utterance.extent is not None
        assert utterance.extent.num_bytes < Path(file.audio_filepath).stat().st_size
        assert abs(len(load_utterance(utterance, SAMPLE_RATE)) - len(load_utterance(file, SAMPLE_RATE))) < 400


def test_audio_with_a_sample_rate_that_opus_does_not_support_is_resampled(tmp_path: Path) -> None:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, 22050)
    soundfile.write(tmp_path / "a.wav", samples, 22050)
    write_manifest(tmp_path / "train.jsonl", [Utterance(str(tmp_path / "a.wav"), 1.0, "a", "a")])
    [utterance] = write_shards(tmp_path / "train.jsonl", tmp_path / "out", "--opus")
    assert abs(len(load_utterance(utterance, SAMPLE_RATE)) - SAMPLE_RATE) < 400


def test_shards_cannot_be_packed_into_shards(tones: Path, tmp_path: Path) -> None:
    write_shards(tones / "valid.jsonl", tmp_path / "out")
    with refused(InputError, "asr.shards ... index instead"):
        write_shards(tmp_path / "out" / "index.arrow", tmp_path / "again")


def test_training_on_shards_and_on_files_gives_bit_identical_bundles(tones: Path, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write_shards(tones / f"{split}.jsonl", tmp_path / "out" / split, "--shard-megabytes", "0.3")
    common = [*TINY, "trainer.max_epochs=2", "augment=[speed_perturb,spec_augment]", "data.num_workers=2"]
    in_shards = [f"corpus.{split}=[{split}/index.arrow]" for split in ("train", "valid", "test")]
    for name, corpus in (("files", tone_corpus(tones)), ("shards", [*tone_corpus(tmp_path / "out"), *in_shards])):
        train(settings_with(*common, *corpus, f"run_dir={tmp_path / name / 'run'}"))
    assert content_of(tmp_path / "shards/run/bundle") == content_of(tmp_path / "files/run/bundle")


@pytest.mark.slow
def test_training_on_shards_in_s3_gives_the_same_bundle_despite_faults_of_the_store(
    tones: Path, tmp_path: Path, s3: FaultyProxy
) -> None:
    for split in ("train", "valid", "test"):
        options = ["-o", f"s3://bucket/tones/{split}", "--shard-megabytes", "0.3"]
        assert shards.main([str(tones / f"{split}.jsonl"), *options]) == 0
    common = [*TINY, "trainer.max_epochs=2", "data.num_workers=2", "data.timeout_seconds=2"]
    train(settings_with(*common, *tone_corpus(tones), f"run_dir={tmp_path / 'files/run'}"))
    in_shards = [f"corpus.{split}=[{split}/index.arrow]" for split in ("train", "valid", "test")]
    corpus = [*tone_corpus(Path("tones")), "corpus.dir=s3://bucket/tones", *in_shards]
    s3.faults.extend(["slow_down", "reset", "", "cut", "", "", "hang", "", "reset_within"] * 2)
    train(settings_with(*common, *corpus, f"data.cache_dir={tmp_path / 'cache'}", f"run_dir={tmp_path / 's3/run'}"))
    assert not s3.faults, "each fault must have occurred"
    assert content_of(tmp_path / "s3/run/bundle") == content_of(tmp_path / "files/run/bundle")
    del s3.requests[:]
    again = f"run_dir={tmp_path / 'again/run'}"
    train(settings_with(*common, *corpus, f"data.cache_dir={tmp_path / 'cache'}", again))
    assert content_of(tmp_path / "again/run/bundle") == content_of(tmp_path / "files/run/bundle")
    assert [request for request in s3.requests if request[2]] == [], "fetched ranges are on the local disk"


def test_a_failing_store_ends_the_run_in_one_line_and_skips_nothing(
    tones: Path, tmp_path: Path, s3: FaultyProxy
) -> None:
    for split in ("train", "valid", "test"):
        assert shards.main([str(tones / f"{split}.jsonl"), "-o", f"s3://bucket/other/{split}"]) == 0
    in_shards = [f"corpus.{split}=[{split}/index.arrow]" for split in ("train", "valid", "test")]
    corpus = [*tone_corpus(Path("tones")), "corpus.dir=s3://bucket/other", *in_shards, "data.retry_seconds=1"]
    s3.faults.extend([""] * 12)
    s3.forever = "expired"
    with refused(StoreError, "s3://bucket/other/") as raised:
        train(settings_with(*TINY, *corpus, "trainer.max_epochs=9", f"run_dir={tmp_path / 'run'}"))
    assert "wJalrXUtnFEMI" not in str(raised.value)


def test_evaluation_and_transcription_of_shards_equal_those_of_files(
    tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest, bundle = tones / "test.jsonl", str(ROOT / "tests" / "bundles" / "format-11")
    write_shards(manifest, tmp_path / "test")
    lines = {}
    for name, path in (("files", str(manifest)), ("shards", str(tmp_path / "test" / "index.arrow"))):
        assert evaluate([bundle, path, "--output-dir", str(tmp_path / name)]) == 0
        capsys.readouterr()
        assert transcribe([bundle, path]) == 0
        lines[name] = capsys.readouterr().out
    assert lines["shards"] == lines["files"] != ""
    results = [json.loads((tmp_path / name / "test.wer.json").read_text()) for name in ("shards", "files")]
    assert results[0]["wer"] == results[1]["wer"]
    counts = ("substitutions", "insertions", "deletions", "reference_words", "cer")
    assert [results[0][key] for key in counts] == [results[1][key] for key in counts]


@pytest.mark.slow
def test_a_killed_writer_continues_and_writes_the_same_files_as_an_undisturbed_one(tones: Path, tmp_path: Path) -> None:
    program = (
        "import sys, time; from asr import shards; from asr.core.data import shard_writer\n"
        "shards.MIN_MEGABYTES = 0\nadd = shard_writer._add\n"
        "shard_writer._add = lambda *given: time.sleep(0.01) or add(*given)\n"
        "shards.main(sys.argv[1:])"
    )
    arguments = [str(tones / "train.jsonl"), "-o", str(tmp_path / "killed"), "--shard-megabytes", "0.2"]
    for shards_before in (1, 3):
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.DEVNULL)
        while len(list((tmp_path / "killed").glob("*.arrow"))) < shards_before:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "killed" / "index.arrow").exists()
    write_shards(tones / "train.jsonl", tmp_path / "killed", "--shard-megabytes", "0.2")
    write_shards(tones / "train.jsonl", tmp_path / "whole", "--shard-megabytes", "0.2")
    assert content_of(tmp_path / "killed") == content_of(tmp_path / "whole")


def test_shards_of_another_manifest_are_not_mixed_in(tones: Path, tmp_path: Path) -> None:
    write_shards(tones / "train.jsonl", tmp_path / "out", "--prefix", "x")
    (tmp_path / "out" / "index.arrow").unlink()  # a killed run leaves no index
    with refused(InputError, "same manifests ... x-000000.tar"):
        write_shards(tones / "valid.jsonl", tmp_path / "out", "--prefix", "x")


@pytest.mark.parametrize("later", ["0.02", "0.2", "1000"])
def test_shard_size_cannot_be_changed_within_a_folder(later: str, tones: Path, tmp_path: Path) -> None:
    size = ["--shard-megabytes", "0.1"]
    write_shards(tones / "train.jsonl", tmp_path / "out", *size)
    assert len(list((tmp_path / "out").glob("*.tar"))) > 2
    before = content_of(tmp_path / "out")
    with refused(InputError, "--shard-megabytes ... train-000000.tar"):
        write_shards(tones / "train.jsonl", tmp_path / "out", "--shard-megabytes", later)
    write_shards(tones / "train.jsonl", tmp_path / "out", *size)
    assert content_of(tmp_path / "out") == before


def test_the_index_of_another_manifest_is_not_replaced(tones: Path, tmp_path: Path) -> None:
    write_shards(tones / "train.jsonl", tmp_path / "out")
    before = content_of(tmp_path / "out")
    with refused(InputError, "other manifests ... --output"):
        write_shards(tones / "valid.jsonl", tmp_path / "out")
    assert content_of(tmp_path / "out") == before


def test_a_shard_that_contradicts_its_index_ends_the_run_in_one_line(tones: Path, tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        write_shards(tones / f"{split}.jsonl", tmp_path / "out" / split)
    in_shards = [f"corpus.{split}=[{split}/index.arrow]" for split in ("train", "valid", "test")]
    run = settings_with(*TINY, *tone_corpus(tmp_path / "out"), *in_shards, f"run_dir={tmp_path / 'run'}")
    [shard] = (tmp_path / "out" / "train").glob("*.tar")
    os.truncate(shard, shard.stat().st_size - 1024)
    with refused(StoreError, "train-000000.tar ... shard"):
        train(run)
    shard.unlink()
    with refused(StoreError, "train-000000.tar ... can be read"):
        train(run)


def test_a_shard_truncated_during_a_run_is_not_attributed_to_an_utterance(tones: Path, tmp_path: Path) -> None:
    sharded = write_shards(tones / "train.jsonl", tmp_path / "out")
    [shard] = (tmp_path / "out").glob("*.tar")
    os.truncate(shard, shard.stat().st_size // 2)
    assert len(load_utterance(sharded[0], SAMPLE_RATE))
    with refused(StoreError, "train-000000.tar"):
        load_utterance(sharded[-1], SAMPLE_RATE)


def test_a_shard_replaced_during_a_run_is_named(tones: Path, tmp_path: Path, s3: FaultyProxy) -> None:
    assert shards.main([str(tones / "train.jsonl"), "-o", "s3://bucket/exchanged"]) == 0
    assert shards.main([str(tones / "train.jsonl"), "-o", str(tmp_path)]) == 0
    for folder in ("s3://bucket/exchanged", str(tmp_path)):
        utterances, shard = IndexCache().utterances(f"{folder}/index.arrow"), f"{folder}/train-000000.tar"
        check_shards(utterances.parts[0].index, folder)
        assert len(load_utterance(utterances[0], SAMPLE_RATE))
        content = bytearray(store.read_whole(shard))
        content[-2000] ^= 1
        store.write_whole(shard, bytes(content))
        with refused(StoreError, "train-000000.tar ... change while"):
            load_utterance(utterances[0], SAMPLE_RATE)


def test_absent_audio_is_named_and_no_shard_is_left(tones: Path, tmp_path: Path) -> None:
    utterances = [*read_manifest(tones / "valid.jsonl"), Utterance(str(tmp_path / "absent.wav"), 1.0, "a", "x")]
    write_manifest(tmp_path / "train.jsonl", utterances)
    with refused(StoreError, "absent.wav ... can be read"):
        write_shards(tmp_path / "train.jsonl", tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--shard-megabytes", "-1"], "--shard-megabytes; got -1"),
        (["--prefix", "../x"], "--prefix ... file name"),
    ],
)
def test_invalid_options_are_refused(options: list[str], message: str, tones: Path, tmp_path: Path) -> None:
    with refused(InputError, message):
        shards.main([str(tones / "valid.jsonl"), "-o", str(tmp_path / "out"), *options])


def test_headers_of_audio_in_memory_are_read(tones: Path) -> None:
    utterance = read_manifest(tones / "valid.jsonl")[0]
    content = Path(utterance.audio_filepath).read_bytes()
    assert audio_info("x", content) == audio_info(utterance.audio_filepath)
    assert io.BytesIO(content).read(4) in (b"RIFF", b"fLaC")
