"""The suite runs all benchmarks even if one of them fails; individual benchmarks print the expected rows."""

import json
from pathlib import Path

import pytest

from asr.core.checkpoint.load import write_bundle
from asr.errors import InputError
from benchmarks import (
    captions,
    export,
    large_export,
    long_recording,
    optimizers,
    plan,
    remote,
    remote_peers,
    searches,
    serve,
    silence,
    startup,
    suite,
)
from benchmarks.race import race
from tests.conftest import ROOT
from tests.forked import run_module
from tests.refusals import mentions, refused
from tests.test_average import save


def test_the_suite_contains_every_benchmark() -> None:
    programs = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if "run_command(main)" in path.read_text()}
    assert programs == {*suite.SUITE, "suite", "remote_server"}  # the server is started by `remote`


def test_a_benchmark_that_fails_is_named_and_the_next_benchmark_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "plan.json").write_text('{"about": {}, "rows": [{}, {}]}')
    assert suite.main(["absent", "results", "--output-dir", str(tmp_path)]) == 1
    shown = capfd.readouterr()
    assert shown.out.index("## absent") < shown.out.index("## results")
    assert mentions(shown.err, "every benchmark ... absent")
    index = (tmp_path / "index.html").read_text()
    assert 'href="plan.html">plan</a> (<a href="plan.json">2 rows</a>)' in index
    assert "absent: failed with status 1 after" in index
    assert "results: done after" in index


def test_the_suite_exits_with_status_0_if_all_benchmarks_succeed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert suite.main(["results", "--output-dir", str(tmp_path)]) == 0


def test_a_program_is_timed_until_it_prints_the_expected_line(tmp_path: Path) -> None:
    last = tmp_path / "last"
    code = f"import time; print('begun', flush=True); time.sleep(60); open({str(last)!r}, 'w')"
    assert race({"program": lambda: startup.run(["-c", code], "beg")}, turns=1, warm_up=0)["program"].seconds < 30
    assert not last.exists()
    with pytest.raises(RuntimeError, match=r"^two$"):
        startup.run(["-c", "print('one'); print('two')"], "three")
    with pytest.raises(RuntimeError, match=r"^so$"):
        startup.run(["-c", "print('so'); raise SystemExit(3)"])


def test_the_cpu_time_of_a_turn_includes_the_programs_that_it_starts() -> None:
    code = "import time\nwhile time.process_time() < 0.5: pass"
    turn = race({"program": lambda: startup.run(["-c", code])}, turns=1, warm_up=0)["program"]
    assert turn.cpu_seconds >= 0.5


def test_timing_the_import_of_an_absent_package_raises_an_import_error() -> None:
    with pytest.raises(ImportError, match="No module named 'absent'"):
        startup.make_import("from absent.inference import Recognizer")
    startup.make_import("import json; json.loads")()


def rows(folder: Path, name: str) -> list[dict[str, object]]:
    assert (folder / f"{name}.html").is_file()
    return json.loads((folder / f"{name}.json").read_text())["rows"]


def test_the_benchmark_of_the_plan_has_a_row_for_each_number_of_utterances_and_ranks(tmp_path: Path) -> None:
    absent = str(tmp_path / "absent")
    options = ["--utterances", "2000", "--world-size", "1", "2", "--turns", "1", "--train-mini", absent]
    assert plan.main([*options, "--output-dir", str(tmp_path)]) == 0
    first, second = rows(tmp_path, "plan")
    assert (first["utterances"], first["ranks"], second["ranks"]) == ("2,000", "1", "2")
    assert second["steps"] == pytest.approx(first["steps"] / 2, abs=1)  # type: ignore[operator]
    assert 0 < first["padding"] < 0.1  # type: ignore[operator]
    assert first["seconds"] > 0  # type: ignore[operator]


@pytest.mark.slow
def test_the_benchmark_of_long_recordings_has_a_row_for_each_length_and_method_of_cutting(
    fluent: Path, tmp_path: Path
) -> None:
    options = [str(fluent / "run"), str(fluent / "test.jsonl"), "--output-dir", str(tmp_path)]
    assert long_recording.main([*options, "--minutes", "0.1", "--chunk", "2"]) == 0
    found = rows(tmp_path, "long_recording")
    assert [(row["minutes"], row["segment"]) for row in found] == [("0.1", "chunks"), ("0.1", "silence")]
    assert long_recording.main([*options, "--compare", "--recordings", "1", "--segment", "chunks"]) == 0
    [row] = rows(tmp_path, "long_recording_compared")
    assert row["words"] > 0  # type: ignore[operator]


@pytest.mark.slow
def test_the_benchmark_of_silence_has_a_row_for_each_kind_of_silence_and_of_non_speech(
    fluent: Path, tmp_path: Path
) -> None:
    options = [str(fluent / "run"), str(fluent / "test.jsonl"), "--output-dir", str(tmp_path)]
    assert silence.main(options) == 0
    found = rows(tmp_path, "silence")
    assert [row["WER"] is None for row in found] == [False] * 5 + [True] * 3
    assert found[0]["WER"] < 0.05  # type: ignore[operator]  # this model recognises nearly every word of its corpus
    assert found[1]["WER"] < 0.3  # type: ignore[operator]  # the gaps of tones are silent as well


@pytest.mark.slow
def test_the_benchmark_of_large_exports_has_a_row_for_each_kind_of_weights(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    small = ["encoder.dim=32", "encoder.num_layers=1", "head.predictor.dim=16"]
    assert large_export.main([*small, "--weights", "float32", "fp16", "--output-dir", str(tmp_path)]) == 0
    float32, fp16 = rows(tmp_path, "large_export")
    assert 0 < float32["largest difference"] < 1e-4 < fp16["largest difference"] < 1e-2  # type: ignore[operator]
    assert fp16["GB on disk"] < 0.7 * float32["GB on disk"]  # type: ignore[operator]
    assert all(row["seconds"] > 0 and row["peak GB"] > 0 for row in (float32, fp16))  # type: ignore[operator]


@pytest.mark.slow
def test_the_benchmark_of_exports_runs_the_programs_of_readmes(fluent: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    options = [str(fluent / "run" / "bundle"), str(fluent / "test.jsonl"), "--contenders", "ONNX float32"]
    few = ["--seconds", "1", "--batch", "1", "--threads", "1", "--turns", "1", "--output-dir", str(tmp_path)]
    assert export.main([*options, *few]) == 0
    [total] = rows(tmp_path, "export_totals")
    assert total["WER %"] < 5  # type: ignore[operator]
    assert rows(tmp_path, "export_cold")[-1]["program"] == "ONNX float32, to the first text"


def test_a_simulated_bulk_job_writes_every_part(tmp_path: Path) -> None:
    """In a process of its own, because the benchmark replaces functions to count their calls."""
    done = run_module("benchmarks.bulk", "simulate", "--hours", "2", "--output-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "600 utterances, 2 parts" in done.stdout
    assert rows(tmp_path, "bulk_simulate")[-1]["step"] == "failures.jsonl and report.json"


def test_the_benchmark_of_the_server_has_a_row_for_each_number_of_clients(fluent: Path, tmp_path: Path) -> None:
    options = [str(fluent / "run"), str(fluent / "test.jsonl"), "--clients", "2", "--max-batch", "2", "--turns", "1"]
    assert serve.main([*options, "--seconds", "1", "--output-dir", str(tmp_path)]) == 0
    [row] = rows(tmp_path, "serve")
    assert (row["clients"], row["requests"]) == ("2", serve.MIN_REQUESTS)
    assert 1 <= row["batch"] <= 2  # type: ignore[operator]
    assert row["peak MB"] > 100  # type: ignore[operator]


@pytest.mark.slow
def test_the_benchmark_of_captions_has_a_row_for_each_number_of_clients(fluent: Path, tmp_path: Path) -> None:
    options = [str(fluent / "run"), str(fluent / "test.jsonl"), "--clients", "2", "--seconds", "4"]
    assert captions.main([*options, "--output-dir", str(tmp_path)]) == 0
    [row] = rows(tmp_path, "captions")
    assert row["clients"] == "2"
    assert row["words"] > 4  # type: ignore[operator]
    assert row["clients per core"] > 0.5  # type: ignore[operator]
    assert 0 < row["p50 s"] <= row["p99 s"]  # type: ignore[operator]


def test_if_the_default_model_is_absent_the_error_says_how_to_train_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for benchmark in (serve, long_recording):
        with pytest.raises(SystemExit, match="2"):
            benchmark.main([])
        assert mentions(capsys.readouterr().err, "MODEL ... runs/mini ... runs/mini")


@pytest.mark.slow
def test_every_reader_reads_all_audio_from_a_server_with_latency(tmp_path: Path) -> None:
    few = ["--utterances", "41", "--latency-ms", "1", "--turns", "1", "--output-dir", str(tmp_path)]
    assert remote.main([*few, "--workers", "1"]) == 0
    assert [row["audio in"] for row in rows(tmp_path, "remote")] == [
        "local files",
        "local shards",
        "shards, 1 ms away",
    ]
    assert remote_peers.main(few) == 0  # each reader must report all utterances
    readers = rows(tmp_path, "remote_peers")
    assert {"asr", "WebDataset"} <= {row["reader"] for row in readers}
    assert all(row["CPU s/audio hour"] > 0 for row in readers)  # type: ignore[operator]
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


def test_a_benchmark_runs_in_the_environment_of_its_peers_if_that_environment_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite.sys, "prefix", str(tmp_path / "venv"))
    assert suite.interpreter("train_step") == suite.interpreter("plan") == suite.sys.executable
    own = tmp_path / "venv-nets" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.touch()
    assert suite.interpreter("train_step") == str(own)
    assert suite.interpreter("plan") == suite.sys.executable


def test_make_bench_makes_every_environment() -> None:
    files = {path.stem for path in (ROOT / "benchmarks" / "environments").glob("*.txt")}
    [rule] = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("bench:")]
    assert files == set(suite.ENVIRONMENTS.values())
    assert {f".venv-{name}" for name in files} <= set(rule.split())


@pytest.mark.slow
def test_searches_are_timed_for_supported_heads_and_other_heads_are_refused(fluent: Path, tmp_path: Path) -> None:
    """The searches run in a process of their own, because SpeechBrain's lazy modules break hypothesis."""
    sizes = ["head=transducer", "head/predictor=lstm", "head.predictor.dim=16", "head.joint_dim=24"]
    write_bundle(tmp_path / "lstm", [save(tmp_path / "step=1.ckpt", *sizes, texts=[" abcde"])], "# tiny\n")
    options = ["--audio", str(fluent / "test.jsonl"), "--turns", "1", "--output-dir", str(tmp_path)]
    done = run_module("benchmarks.searches", tmp_path / "lstm", tmp_path / "absent", *options)
    assert done.returncode == 0, done.stderr
    found = [row for row in rows(tmp_path, "searches") if str(row["search"]).startswith("asr")]
    assert [row["search"] for row in found] == ["asr greedy", "asr beam 4", "asr beam 10"]
    assert all(row["x ours"] == 1 and row["texts that differ from ours"] == "0 of 60" for row in found)
    assert f"{tmp_path / 'absent'}: left out, because it does not exist" in done.stdout
    with refused(InputError, "attention decoder ... CTC"):
        searches.main([str(fluent / "run"), *options])


def test_each_optimizer_is_timed_beside_the_passes_of_a_batch(tmp_path: Path) -> None:
    options = ["--encoders", "conformer_xs", "--seconds", "1", "--turns", "1", "--output-dir", str(tmp_path)]
    chosen = ["optimizer=adamw", "optimizer=muon", "optimizer=scaled_adam"]
    assert optimizers.main([*options, "--optimizers", *chosen]) == 0
    rows = json.loads((tmp_path / "optimizers.json").read_text())["rows"]
    assert [row["optimizer"] for row in rows] == chosen
    for row in rows:
        assert row["share %"] == pytest.approx(100 * row["optimizer ms"] / row["passes ms"])
