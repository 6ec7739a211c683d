"""A speedrun downloads LibriSpeech, plans, checks, trains and evaluates, and prints one table."""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import soundfile

from recipes.librispeech import speedrun
from recipes.librispeech.corpus import SUBSETS, Subset
from recipes.librispeech.prepare import main as prepare
from recipes.librispeech.speedrun import RUNS, main
from tests.conftest import TINY
from tests.forked import run_module
from tests.refusals import check_refusal
from tests.tones import SAMPLE_RATE, sentences, speak

WER = {"wer": 0.0731, "wer_interval": [0.07, 0.08], "reference_words": 52576}


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the stages, which are recorded instead of being run."""
    recorded: list[list[str]] = []
    monkeypatch.setattr(speedrun, "run_module", lambda *command: recorded.append([*command]) or 0)
    return recorded


def test_the_stages_run_in_order_and_the_table_has_the_goals(
    tmp_path: Path, commands: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"test-clean": WER, "test-other": WER}))
    assert (
        main(["100", "--run-dir", str(tmp_path), "--data-dir", str(tmp_path), "--overrides", "trainer.devices=2"]) == 0
    )
    first, *_, evaluate = commands
    modules = [command[0] for command in commands]
    assert modules == ["recipes.librispeech.prepare", "asr.plan", "asr.doctor", "asr.train", "asr.evaluate"]
    assert first[first.index("--subsets") + 1 :] == [*RUNS[100].subsets]
    assert all({"experiment=librispeech_100h", "trainer.devices=2"} <= {*command} for command in commands[1:4])
    assert [Path(path).name for path in evaluate[2:4]] == ["test-clean.jsonl", "test-other.jsonl"]
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["test-clean", "52,576", "7.31", "7.00", "to", "8.00", "7.5"] in rows
    assert ["test-other", "52,576", "7.31", "7.00", "to", "8.00", "21.0"] in rows


def test_a_failed_stage_ends_the_run_and_existing_manifests_are_not_prepared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in RUNS[5].subsets:
        (tmp_path / f"{name}.jsonl").touch()
    monkeypatch.setattr(speedrun, "run_module", lambda module, *_: int(module == "asr.doctor"))
    assert main(["5", "--data-dir", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    check_refusal(printed.err, "asr.doctor ... 1")
    assert "1 of 4" in printed.out
    assert "3 of 4" not in printed.out


def test_an_unknown_number_of_hours_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["360"]) == 1
    check_refusal(capsys.readouterr().err, "HOURS; got 360")


def archive(subset: str, texts: list[str]) -> bytes:
    """Return a tar.gz in LibriSpeech's layout, with an utterance of tones for each text."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as tar:
        chapter = f"LibriSpeech/{subset}/84/121"
        files = {f"{chapter}/84-121.trans.txt": b""}
        for number, text in enumerate(texts):
            name, flac = f"84-121-{number:04d}", io.BytesIO()
            soundfile.write(flac, speak(text), SAMPLE_RATE, format="FLAC", subtype="PCM_16")
            files[f"{chapter}/{name}.flac"] = flac.getvalue()
            files[f"{chapter}/84-121.trans.txt"] += f"{name} {text.upper()}\n".encode()
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return content.getvalue()


@pytest.fixture
def openslr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server with small archives that have the names of Mini LibriSpeech's."""
    folder = tmp_path / "openslr"
    folder.mkdir()
    for seed, (subset, number) in enumerate([("train-clean-5", 48), ("dev-clean-2", 8)]):
        content = archive(subset, sentences(number, seed=seed))
        (folder / f"{subset}.tar.gz").write_bytes(content)
        facts = Subset(number, 0.0, len(content), hashlib.md5(content).hexdigest())
        monkeypatch.setitem(SUBSETS, subset, facts)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_speedrun_over_five_hours_goes_from_a_download_to_a_word_error_rate(
    openslr: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs: list[str] = []

    def forked(module: str, *arguments: str) -> int:
        if module == "recipes.librispeech.prepare":  # in this process, whose totals of the subsets are replaced
            return prepare([*arguments])
        ended = run_module(module, *arguments)
        outputs.append(ended.stdout + ended.stderr)
        return ended.returncode

    monkeypatch.setattr(speedrun, "run_module", forked)
    folders = [f"--{name}-dir={tmp_path / name}" for name in ("corpus", "data", "run")]
    command = ["5", *folders, "--mirror", openslr, "--overrides", *TINY, "trainer.max_epochs=3", "checkpoint.keep=1"]
    assert main(command) == 0, outputs
    printed = capsys.readouterr().out
    [wer] = json.loads((tmp_path / "run" / "results.json").read_text()).values()
    assert f"{100 * wer['wer']:.2f}" in printed
    assert (tmp_path / "run" / "evaluation" / "report.html").is_file()
    assert main(command) == 0, outputs
    assert "1 of 4" in capsys.readouterr().out
