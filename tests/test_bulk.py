"""Bulk jobs of asr.transcribe: parts, failures, and resumption after interruptions."""

import json
import math
import os
import random
import re
import shutil
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file, save_file

from asr.apps.bulk import folder
from asr.apps.bulk.parts import PartTask, plan_parts, share_of
from asr.apps.bulk.source import open_source
from asr.apps.bulk.statistics import repetition
from asr.apps.bulk.transcription import transcribe_part
from asr.base.storage.store import list_prefix, read_whole, write_together, write_whole
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.recognition.inference import INFERENCE
from asr.errors import InputError, StoreError
from asr.shards import main as shards
from asr.transcribe import main as transcribe
from tests.bulk import (
    BAD,
    BUNDLE,
    PART_HOURS,
    failures_of,
    files_of,
    finished_job,
    job_options,
    lines,
    start,
    texts_of,
    write_input,
)
from tests.refusals import refused
from tests.storing import FaultyProxy, storage
from tests.tones import SAMPLE_RATE, speak

NAMES_OF_BAD = {f"bad {kind}" for kind in BAD}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest of 24 good and 5 bad recordings."""
    return write_input(tmp_path_factory.mktemp("input"))


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed job."""
    return finished_job(source, tmp_path_factory.mktemp("undisturbed"), "--segments")


def test_each_utterance_has_either_a_text_or_a_failure(source: Path, undisturbed: Path) -> None:
    ids = [entry["id"] for entry in lines(source)]
    texts, failures = texts_of(undisturbed), failures_of(undisturbed)
    assert len(ids) == 29
    assert texts.keys() | failures.keys() == set(ids)
    assert not texts.keys() & failures.keys()
    assert failures.keys() == NAMES_OF_BAD
    assert all("\n" not in reason and reason for reason in failures.values())
    in_order = [name for name in ids if name in texts]
    assert list(texts) == in_order


def test_texts_equal_those_of_the_command_without_the_option_parts(
    source: Path, undisturbed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe([str(BUNDLE), str(source), "--format", "jsonl", "--device", "cpu"]) == 1
    plain = {entry["id"]: entry for entry in map(json.loads, capsys.readouterr().out.splitlines())}
    texts = texts_of(undisturbed)
    assert {name: entry["text"] for name, entry in texts.items()} == {
        name: entry["text"] for name, entry in plain.items()
    }
    assert any(entry["text"] for entry in plain.values())
    assert {key for entry in texts.values() for key in entry} == {key for entry in plain.values() for key in entry} | {
        "audio_filepath"
    }


def test_parts_have_the_requested_length_and_consecutive_utterances() -> None:
    durations = [3.0, 4.0, 1.0, 30.0, 2.0, 2.0, 2.0, 9.0]
    plan = plan_parts(torch.tensor(durations, dtype=torch.float64), 7.0)
    expected: list[list[int]] = []
    passed, slot = 0.0, -1
    for row, length in enumerate(durations):  # a part begins with the first utterance that starts in a new slot of 7 s
        if int(passed // 7.0) != slot:
            slot = int(passed // 7.0)
            expected.append([])
        expected[-1].append(row)
        passed += length
    assert [list(range(8))[plan.rows(number)] for number in range(plan.num_parts)] == expected
    assert plan.name(3) == "part-00003"


@pytest.mark.parametrize("total", [1, 3, 7, 400])
def test_the_shares_of_a_job_array_cover_each_part_once(total: int) -> None:
    shares = [share_of(f"{place}/{total}", 23) for place in range(1, total + 1)]
    assert sorted(number for share in shares for number in share) == list(range(23))


@pytest.mark.parametrize("share", ["0/4", "5/4", "1", "-1/4", "1/0", "a/b"])
def test_an_invalid_share_is_refused(share: str) -> None:
    with refused(InputError, "--part ... K/N"):
        share_of(share, 10)


def test_the_tasks_of_a_job_array_write_the_same_files_as_a_single_job(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    for place in (2, 3, 1):
        assert not (tmp_path / "failures.jsonl").exists()
        transcribe(job_options(source, tmp_path, "--segments", "--part", f"{place}/3"))
    assert files_of(tmp_path) == files_of(undisturbed)


def test_a_folder_of_audio_gives_the_same_texts_as_the_manifest(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    transcribe(job_options(source.parent / "audio", tmp_path, "--accept-failures"))
    texts, failures = texts_of(tmp_path), failures_of(tmp_path)
    assert {name: entry["text"] for name, entry in texts.items()} == {
        entry["audio_filepath"].rpartition("/")[2]: entry["text"] for entry in texts_of(undisturbed).values()
    }
    assert failures.keys() == {f"{kind}.flac" for kind in BAD if kind != "missing"}
    assert len(list(tmp_path.glob("part-*.jsonl"))) > 1


def test_an_index_of_shards_gives_the_same_texts_as_the_manifest(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    good = [entry | {"text": ""} for entry in lines(source) if entry["id"] not in NAMES_OF_BAD]
    manifest = source.parent / "good.jsonl"
    manifest.write_text("".join(json.dumps(entry) + "\n" for entry in good))
    shards([str(manifest), "-o", str(tmp_path / "shards"), "--shard-megabytes", "1"])
    manifest.unlink()
    transcribe(job_options(tmp_path / "shards", tmp_path / "out"))
    assert {name: entry["text"] for name, entry in texts_of(tmp_path / "out").items()} == {
        name: entry["text"] for name, entry in texts_of(undisturbed).items()
    }


def test_a_job_on_s3_gives_the_same_texts_as_a_local_job(
    source: Path, undisturbed: Path, s3: FaultyProxy, tmp_path: Path
) -> None:
    good = [entry for entry in lines(source) if entry["id"] != "bad missing"]  # a missing file cannot be uploaded
    for entry in good:
        write_whole(f"s3://bucket/bulk/{entry['audio_filepath']}", source.parent / entry["audio_filepath"])
    s3.faults.extend(["slow_down", "reset", "", "cut", "slow_down"])
    transcribe(job_options("s3://bucket/bulk/audio", "s3://bucket/out", "--accept-failures"))
    for url, _ in list_prefix("s3://bucket/out"):
        (tmp_path / url.rpartition("/")[2]).write_bytes(read_whole(url))
    by_file = {entry["audio_filepath"].rpartition("/")[2]: entry["text"] for entry in texts_of(undisturbed).values()}
    assert {name: entry["text"] for name, entry in texts_of(tmp_path).items()} == by_file
    assert failures_of(tmp_path).keys() == {f"{kind}.flac" for kind in BAD if kind != "missing"}
    assert all(entry["audio_filepath"].startswith("s3://bucket/bulk/audio/") for entry in texts_of(tmp_path).values())
    s3.reset()
    transcribe(job_options("s3://bucket/bulk/audio", "s3://bucket/out", "--accept-failures"))
    read = [target for method, target, _ in s3.requests if method == "GET" and ".flac" in target]
    assert read == [], "a finished job neither reads audio nor opens files for their sizes"
    listings = [target for method, target, _ in s3.requests if method == "GET" and "list-type=2" in target]
    assert len(listings) == 2, "input and output are listed once each"


def test_a_failing_store_ends_a_job_with_a_one_line_error_and_the_job_resumes(
    source: Path, s3: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from asr.base.storage import session

    good = [entry for entry in lines(source) if entry["id"] != "bad missing"]
    for entry in good:
        write_whole(f"s3://bucket/ends/{entry['audio_filepath']}", source.parent / entry["audio_filepath"])
    session.configure(storage(retry_seconds=0.5))
    arguments = job_options("s3://bucket/ends/audio", tmp_path, "--accept-failures")
    s3.faults.extend([""] * 20)
    s3.forever = "slow_down"
    with refused(StoreError, "s3://bucket/ends/audio/ ... .flac: 503 ... SlowDown"):
        transcribe(arguments)
    done = len(list(tmp_path.glob("part-*.jsonl")))
    s3.reset()
    transcribe(arguments)
    assert len(texts_of(tmp_path)) == 24
    assert done < len(list(tmp_path.glob("part-*.jsonl")))


def test_a_job_killed_at_random_moments_and_resumed_gives_the_files_of_an_undisturbed_job(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    output, log, draw = tmp_path / "out", tmp_path / "log", random.Random(7)
    arguments = job_options(source, output, "--segments")
    for done in (0, 1, 2, 4, 6):  # number of parts written before the next kill
        process = start(arguments, log)
        while process.is_alive() and len(list(output.glob("part-*.jsonl"))) < done:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.1))
        assert process.is_alive()
        process.kill()
        process.join()
    start(arguments, log).join()
    assert files_of(output) == files_of(undisturbed)
    assert (output / "report.json").exists()


def test_two_processes_in_one_folder_write_the_same_files_as_one_process(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    arguments = job_options(source, tmp_path / "out", "--segments")
    processes = [start(arguments, tmp_path / f"log-{number}") for number in range(2)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert files_of(tmp_path / "out") == files_of(undisturbed)


def test_a_full_disk_ends_a_job_with_a_one_line_error_and_the_job_resumes(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    arguments = job_options(source, tmp_path / "out", "--segments")
    largest = max(len(content) for name, content in files_of(undisturbed).items() if name.startswith("part-"))
    process = start(arguments, tmp_path / "log", max_bytes=largest - 1)
    process.join()
    assert process.exitcode == 1
    errors = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert re.search(r"part-\d+\.jsonl?: .*File too large", errors[0])
    assert "Traceback" not in (tmp_path / "log").read_text()
    transcribe(arguments)
    assert files_of(tmp_path / "out") == files_of(undisturbed)


def test_a_finished_job_that_is_started_again_reads_no_audio(source: Path, tmp_path: Path) -> None:
    shutil.copytree(source.parent, tmp_path / "input")
    arguments = job_options(tmp_path / "input" / "input.jsonl", tmp_path / "out")
    transcribe(arguments)
    before = files_of(tmp_path / "out")
    shutil.rmtree(tmp_path / "input" / "audio")
    transcribe(arguments)
    assert files_of(tmp_path / "out") == before


def test_a_model_that_changed_between_two_starts_is_refused(source: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(BUNDLE, model)
    transcribe(job_options(source, tmp_path / "out", "--part", "1/2", model=model))
    weights = load_file(model / "weights.safetensors")
    name = next(name for name, weight in weights.items() if weight.is_floating_point())
    weights[name].view(-1)[0] += 1e-3
    save_file(weights, model / "weights.safetensors")
    before = files_of(tmp_path / "out")
    with refused(InputError, "differ ... in model", cure="--output-dir"):
        transcribe(job_options(source, tmp_path / "out", model=model))
    with refused(InputError, "in model"):
        transcribe(job_options(source, tmp_path / "out", "--dry-run", model=model))
    assert files_of(tmp_path / "out") == before


def test_a_model_may_be_moved_between_two_starts(source: Path, tmp_path: Path) -> None:
    shutil.copytree(BUNDLE, tmp_path / "copy")
    transcribe(job_options(source, tmp_path / "out", "--part", "1/2"))
    transcribe(job_options(source, tmp_path / "out", model=tmp_path / "copy"))
    assert (tmp_path / "out" / "report.json").exists()


@pytest.mark.parametrize(
    ("more", "change"),
    [
        (["--segments"], "segments: False -> True"),
        (["--part-hours", "1"], f"part_hours: {PART_HOURS} -> 1.0"),
        (["--batch-seconds", "3"], "batch_seconds: 200 -> 3"),
        (["--chunk", "2"], "chunk_seconds: 30 -> 2, context_seconds: 4 -> 0.5"),
        (["--precision", "bfloat16"], "precision: float32 -> bfloat16"),
        (["--characters", "latin"], "characters: None -> latin"),
    ],
)
def test_other_settings_in_the_same_folder_are_refused(
    more: list[str], change: str, source: Path, tmp_path: Path
) -> None:
    transcribe(job_options(source, tmp_path, "--part", "1/9"))
    for options in (more, [*more, "--dry-run"]):
        with refused(InputError, f"parts differ ... {change}"):
            transcribe(job_options(source, tmp_path, *options))


def test_giving_a_default_explicitly_does_not_count_as_another_setting(source: Path, tmp_path: Path) -> None:
    transcribe(job_options(source, tmp_path, "--part", "1/9"))
    defaults = ["--batch-seconds", "200", "--chunk", "30", "--context", "4"]
    transcribe(job_options(source, tmp_path, "--part", "2/9", *defaults))
    assert len(list(tmp_path.glob("part-*.jsonl"))) > 1


def test_another_input_in_the_same_folder_is_refused(source: Path, tmp_path: Path) -> None:
    transcribe(job_options(source, tmp_path, "--part", "1/9"))
    with refused(InputError, "differ ... in input"):
        transcribe(job_options(source.parent / "audio", tmp_path))


def test_parts_without_job_json_are_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "part-00000.jsonl").write_text("")
    with refused(InputError, "it has part-00000.jsonl without job.json"):
        transcribe(job_options(source, tmp_path))


def test_a_dry_run_writes_nothing(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert transcribe(job_options(source, tmp_path / "out", "--dry-run")) == 0
    assert not (tmp_path / "out").exists()
    shown = capsys.readouterr().out
    assert "29 utterances" in shown
    assert re.search(r"expected time: .* times real time", shown)
    assert "requests: 29 reads of audio" in shown


def test_segments_form_a_manifest_and_together_have_the_words_of_the_texts(fluent: Path, tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    pause = np.zeros(SAMPLE_RATE, np.float32)
    long = np.concatenate([piece for number in range(12) for piece in (speak("abcd efab cdef abde"), pause)])
    soundfile.write(tmp_path / "audio" / "long.flac", long, SAMPLE_RATE)
    soundfile.write(tmp_path / "audio" / "short.flac", speak("abcd ef"), SAMPLE_RATE)
    transcribe(job_options(tmp_path / "audio", tmp_path / "out", "--segments", model=fluent / "run"))
    files = sorted((tmp_path / "out").glob("segments-*.jsonl"))
    segments = [segment for file in files for segment in read_manifest(file)]
    of_long = [segment for segment in segments if segment.id.startswith("long.flac")]
    assert len(of_long) > 1
    assert all(0 < segment.duration <= 20 for segment in segments)
    places = [((segment.offset or 0.0), segment.duration) for segment in of_long]
    assert all(begin + length <= after + 1e-3 for (begin, length), (after, _) in pairwise(places))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["num_segments"] == len(segments)
    texts = texts_of(tmp_path / "out")
    if not report["num_torn_segments"]:
        for name in ("long.flac", "short.flac"):
            joined = " ".join(segment.text for segment in segments if segment.id.startswith(name))
            assert joined == texts[name]["text"]


class _Poisoned:
    """A recogniser that raises an error for certain utterances."""

    def __init__(self, poison: set[str], error: Exception) -> None:
        self._recognizer = load_recognizer(BUNDLE)
        self.model, self.recording_encoder = self._recognizer.model, self._recognizer.recording_encoder
        self.poison, self.error = poison, error

    def recognize(self, utterances: Sequence[Utterance], *options: Any) -> Any:
        if self.poison & {utterance.id for utterance in utterances}:
            raise self.error
        return self._recognizer.recognize(utterances, *options)


def test_an_utterance_that_raises_an_unknown_error_is_a_failure_and_the_others_do_not_change(source: Path) -> None:
    utterances = list(open_source(str(source)).utterances)
    task = PartTask(0, utterances, True, {})
    poison = {"good 3", "good 17"}
    result = transcribe_part(_Poisoned(poison, RuntimeError("no\nkernel")), task, INFERENCE, False)  # type: ignore[arg-type]
    failures = {failure["id"]: failure["reason"] for failure in result.record["failures"]}
    assert failures.keys() == NAMES_OF_BAD | poison
    assert failures["good 3"] == "RuntimeError: no kernel"
    without = PartTask(0, [each for each in utterances if each.id not in poison], True, {})
    expected = transcribe_part(load_recognizer(BUNDLE), without, INFERENCE, False)
    assert result.texts == expected.texts


def _breaks(self: Any, *arguments: Any) -> Any:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def test_a_model_that_always_raises_ends_the_job_and_no_part_is_recorded(
    source: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = type(load_recognizer(BUNDLE).model.encoder)
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "forward", _breaks)
        with refused(InputError, "illegal memory"):
            transcribe(job_options(source, tmp_path, "--segments"))
    assert not [*tmp_path.glob("*-*.jsonl"), *(tmp_path / "records").iterdir()]
    assert not (tmp_path / "failures.jsonl").exists()
    transcribe(job_options(source, tmp_path, "--segments"))
    assert files_of(tmp_path) == files_of(undisturbed)


def test_a_job_whose_audio_is_not_there_ends_and_resumes_when_it_is(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(source.parent, tmp_path / "input")
    arguments = job_options(tmp_path / "input" / "input.jsonl", tmp_path / "out", "--segments")
    (tmp_path / "input" / "audio").rename(tmp_path / "elsewhere")
    with refused(InputError, "part-00000 ... --accept-failures"):
        transcribe(arguments)
    assert not [*(tmp_path / "out").glob("*-*.jsonl"), *(tmp_path / "out" / "records").iterdir()]
    assert transcribe([*arguments, "--accept-failures"]) == 0
    assert len(failures_of(tmp_path / "out")) == 29
    assert texts_of(tmp_path / "out") == {}

    (tmp_path / "elsewhere").rename(tmp_path / "input" / "audio")
    transcribe(arguments)
    assert texts_of(tmp_path / "out") == {}, "the parts are done"
    transcribe([*arguments, "--redo-failures"])
    assert failures_of(tmp_path / "out").keys() == NAMES_OF_BAD
    audio = tmp_path / "input" / "audio"
    expected = {
        name: text | {"audio_filepath": str(audio / Path(text["audio_filepath"]).name)}
        for name, text in texts_of(undisturbed).items()
    }
    assert texts_of(tmp_path / "out") == expected
    assert len(list((tmp_path / "out").glob("segments-*.jsonl"))) == len(list(undisturbed.glob("segments-*.jsonl")))


def test_a_model_of_nan_ends_a_job(source: Path, tmp_path: Path) -> None:
    shutil.copytree(BUNDLE, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "weights.safetensors")
    floating = {name for name, weight in weights.items() if weight.is_floating_point() and "running_var" not in name}
    save_file(
        {name: weight * (torch.nan if name in floating else 1) for name, weight in weights.items()},
        tmp_path / "model" / "weights.safetensors",
    )
    with refused(InputError, "have a text ... NaN"):
        transcribe(job_options(source, tmp_path / "out", model=tmp_path / "model"))


def test_a_part_that_is_redone_has_failures_until_all_of_its_files_are_written(
    source: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(undisturbed, tmp_path / "out")
    written: list[str] = []
    monkeypatch.setattr(folder, "write_together", lambda path, content, is_new: written.append(Path(path).name))
    transcribe(job_options(source, tmp_path / "out", "--segments", "--redo-failures", "--part", "1/9"))
    assert [name.partition("-")[0] for name in written[:3]] == ["segments", "part", "part"]
    assert written[1:3] == ["part-00000.jsonl", "part-00000.json"]


@pytest.mark.parametrize(
    "damage",
    [
        *({}, {"num_words": "7"}, {"confidence": [1]}, {"failures": [{"id": 3}]}, {"longest": {}}, {"seconds": None}),
        *({"seconds": math.nan}, {"audio_seconds": math.nan}, {"seconds": math.inf}, {"waiting_seconds": 10**400}),
        *({"begun": "x"}, {"begun": None}, {"audio_seconds": -1.0}, {"num_words": -1}, {"confidence": [-1] * 20}),
        *({"part": 0}, {"num_bytes": 3}, {"num_bytes": {"part-00001.jsonl": "x"}}, {"num_segments": True}),
        {"longest": [{"id": "a", "value": math.nan, "seconds": 1.0, "text": ""}]},
    ],
    ids=str,
)
def test_a_damaged_record_of_a_part_is_reported_in_one_line(
    damage: dict[str, Any], source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed, tmp_path / "out")
    path = tmp_path / "out" / "records" / "part-00001.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage if damage else []))
    check_mended(source, undisturbed, tmp_path / "out", "part-00001.json")


def check_mended(source: Path, undisturbed: Path, output: Path, named: str) -> None:
    """Check that a damaged part is reported with the file to delete, and that this and the same command mend it."""
    arguments = job_options(source, output, "--segments")
    with refused(InputError, named, cure="Delete part-00001.jsonl"):
        transcribe(arguments)
    (output / "part-00001.jsonl").unlink()
    transcribe(arguments)
    assert files_of(output) == files_of(undisturbed)


@pytest.mark.parametrize("content", [b"", b"{", b'{"seconds": 1e999}', b"\xff", b"[" * 100_000, None], ids=str)
def test_a_record_that_is_not_json_or_was_deleted_is_reported_in_one_line(
    content: bytes | None, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed, tmp_path / "out")
    path = tmp_path / "out" / "records" / "part-00001.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    check_mended(source, undisturbed, tmp_path / "out", "part-00001.json")


@pytest.mark.parametrize("file", ["part-00001.jsonl", "segments-00001.jsonl"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.999, None])
def test_a_file_of_a_part_that_was_emptied_cut_or_deleted_is_reported_in_one_line(
    share: float | None, file: str, source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed, tmp_path / "out")
    path = tmp_path / "out" / file
    content = path.read_bytes()
    path.unlink()
    if share is None and file.startswith("part"):  # it is written again
        transcribe(job_options(source, tmp_path / "out", "--segments"))
        assert files_of(tmp_path / "out") == files_of(undisturbed)
        return
    if share is not None:
        path.write_bytes(content[: int(share * len(content))])
    check_mended(source, undisturbed, tmp_path / "out", file)


def test_an_emptied_part_of_an_earlier_version_is_reported_in_one_line(
    source: Path, undisturbed: Path, tmp_path: Path
) -> None:
    shutil.copytree(undisturbed, tmp_path / "out")
    for path in (tmp_path / "out" / "records").iterdir():
        record = json.loads(path.read_text())
        del record["num_bytes"]
        path.write_text(json.dumps(record))
    transcribe(job_options(source, tmp_path / "out", "--segments"))
    (tmp_path / "out" / "part-00001.jsonl").write_bytes(b"")
    check_mended(source, undisturbed, tmp_path / "out", "part-00001.jsonl")


@pytest.mark.parametrize("option", ["--lm", "--lexicon", "--hotwords"])
def test_a_file_of_the_decoder_that_is_absent_is_reported_in_one_line(
    option: str, source: Path, tmp_path: Path
) -> None:
    with refused(InputError, "absent.arpa"):
        transcribe(job_options(source, tmp_path / "out", option, str(tmp_path / "absent.arpa")))


def test_audio_that_is_replaced_between_two_starts_is_refused(source: Path, tmp_path: Path) -> None:
    good = tmp_path / "input"
    good.mkdir()
    for file in sorted(source.parent.joinpath("audio").glob("0*.flac"))[:4]:
        shutil.copy(file, good)
    manifest = tmp_path / "good.jsonl"
    entries = [entry | {"text": ""} for entry in lines(source) if entry["id"] not in NAMES_OF_BAD]
    audio = str(source.parent / "audio")
    manifest.write_text("".join(json.dumps(entry) + "\n" for entry in entries).replace("audio/", f"{audio}/"))
    shards([str(manifest), "-o", str(tmp_path / "shards")])
    for place, replaced in (
        (good, good / "001.flac"),
        (tmp_path / "shards", next((tmp_path / "shards").glob("*.tar"))),
    ):
        output = tmp_path / f"out-{place.name}"
        transcribe(job_options(place, output, "--part", "1/2"))
        status = replaced.stat()
        replaced.write_bytes(replaced.read_bytes())
        os.utime(replaced, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
        with refused(InputError, "in input"):
            transcribe(job_options(place, output))


@pytest.mark.parametrize(
    "error",
    [
        StoreError("s3://bucket/x: 503."),
        MemoryError(),
        *map(RuntimeError, ("CUDA out of memory", "could not create a primitive", "unable to mmap 9 bytes")),
    ],
)
def test_a_job_ends_at_an_error_not_caused_by_an_utterance(error: Exception, source: Path) -> None:
    task = PartTask(0, list(open_source(str(source)).utterances), True, {})
    with pytest.raises(type(error)):
        transcribe_part(_Poisoned({"good 3"}, error), task, INFERENCE, False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--format", "srt"], "--format ... --parts"),
        (["--part-hours", "0"], "--part-hours; got 0"),
        (["--part", "3"], "--part ... K/N"),
        (["--nbest", "3"], "--nbest ... decoder that finds"),
        (["--address", "auto"], "--address ... --engine"),
        (["--stream"], "leave out"),
    ],
)
def test_incompatible_options_are_refused(more: list[str], message: str, source: Path, tmp_path: Path) -> None:
    with refused(InputError, message):
        transcribe(job_options(source, tmp_path, *more))


def test_options_of_bulk_jobs_are_refused_without_the_option_parts(source: Path, tmp_path: Path) -> None:
    for more in (["--segments"], ["--part", "1/2"], ["--dry-run"], ["--engine", "ray"]):
        with refused(InputError, f"{more[0]} ... --parts"):
            transcribe([str(BUNDLE), str(source), *more])
    with refused(InputError, "--parts", got=2):
        transcribe([str(BUNDLE), str(source), "another.wav", "--parts"])
    with refused(InputError, "--parts ... --output-dir"):
        transcribe([str(BUNDLE), str(source), "--parts"])
    with refused(InputError, "--output-dir ... local folder"):
        transcribe([str(BUNDLE), str(source), "--output-dir", "s3://bucket/out"])


def test_a_bad_input_is_reported_in_one_line(source: Path, tmp_path: Path) -> None:
    twice = tmp_path / "twice.jsonl"
    entry = {"audio_filepath": "a.wav", "duration": 1.0}
    twice.write_text(2 * (json.dumps(entry) + "\n"))
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps(entry | {"duration": -1}) + "\n")
    (tmp_path / "none").mkdir()
    for path, message in [
        (twice, "twice.jsonl:2 ... ids"),
        (wrong, "wrong.jsonl:1 ... duration"),
        (tmp_path / "none", "none ... audio ... .flac"),
        (tmp_path / "absent", "audio file"),
        ("shard-000000.tar", "INPUT ... of shards"),
    ]:
        with refused(InputError, message):
            transcribe(job_options(path, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_only_the_first_of_several_processes_writes_a_file(tmp_path: Path, s3: FaultyProxy) -> None:
    for path in (str(tmp_path / "job.json"), "s3://bucket/first/job.json"):
        assert write_together(path, b"first", is_new=True)
        assert not write_together(path, b"second", is_new=True)
        assert read_whole(path) == b"first"
        assert write_together(path, b"third")
        assert read_whole(path) == b"third"
    assert [file.name for file in tmp_path.iterdir()] == ["job.json"]


def test_a_text_that_repeats_itself_has_a_high_repetition_score() -> None:
    assert repetition("thank you " * 30) > 2.4
    assert repetition("an ordinary sentence about nothing much that says each word a single time only") < 1.5


def test_the_report_counts_parts_and_utterances(undisturbed: Path) -> None:
    report = json.loads((undisturbed / "report.json").read_text())
    assert report["num_parts"] == len(list(undisturbed.glob("part-*.jsonl"))) >= 5
    assert report["hours"] * 3600 > 5 * 3600 * PART_HOURS
    assert report["num_texts"] + report["num_failures"] == report["num_utterances"] == 29
