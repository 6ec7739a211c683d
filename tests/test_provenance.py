"""Provenance of a run: command, code, libraries, machine, date and time, in its log, its page and its card."""

import html
import re
import subprocess
from pathlib import Path

import pytest

from asr.core.data.training_set import RunBounds
from asr.core.run import provenance as module
from asr.core.run.events import read_history
from asr.core.run.provenance import provenance
from asr.errors import InputError
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.forked import run_module
from tests.refusals import refused


@pytest.fixture(scope="module")
def run_dir(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was started by the command asr.train and then resumed by it."""
    run_dir = tmp_path_factory.mktemp("provenance") / "a|b"
    for steps in (2, 3):
        more = [f"trainer.max_steps={steps}", "resume.allow=[trainer]", "data.max_train_utterances=8"]
        run_module("asr.train", *TINY, *tone_corpus(tones), f"run_dir='{run_dir}'", *more).check_returncode()
    return run_dir


def test_the_log_has_the_command_the_code_the_machine_and_the_test_wer(run_dir: Path) -> None:
    log = (run_dir / "train.log").read_text()
    assert len(re.findall(r"INFO command: .*-m asr\.train .*trainer\.max_steps=[23]", log)) == 2
    assert re.search(r"INFO code: asr \d+\.\d+\.\d+", log)
    assert re.search(r"INFO libraries: Python 3\.\d+\.\d+, torch 2\.\d+\.\d+", log)
    assert re.search(r"INFO machine: .* \d+ cores", log)
    assert re.search(r"INFO test: WER [\d.]+ % of \d+ words", log)
    assert "INFO 3 steps: trainer.max_epochs=" in log


@pytest.mark.apps
def test_the_model_card_and_the_page_show_where_the_model_comes_from(run_dir: Path) -> None:
    card, page = (run_dir / "bundle" / "README.md").read_text(), (run_dir / "report.html").read_text()
    history = read_history(run_dir / "events.jsonl")
    assert history.latest is not None
    assert history.latest.command.endswith("data.max_train_utterances=8")
    assert html.escape(history.latest.command) in page
    for text in (history.latest.code, history.latest.libraries, history.latest.machine):
        assert f" | {text} |" in card
        assert text in page
    assert re.search(r"Begun.*20\d\d-\d\d-\d\d \d\d:\d\d UTC", page)
    assert "in 2 starts" in page


def test_a_checkout_has_a_commit_and_an_installed_package_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asr").mkdir()
    monkeypatch.setattr(module.asr, "__file__", str(tmp_path / "asr" / "__init__.py"))
    assert re.fullmatch(r"asr \d+\.\d+\.\d+", provenance().code)

    def git(*arguments: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    (tmp_path / "conf").mkdir()
    for folder in ("asr", "conf"):
        (tmp_path / folder / "file").write_text("")
    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    assert re.fullmatch(r"asr \S+, commit [0-9a-f]{12}", provenance().code)
    (tmp_path / "asr" / "file").write_text("changed")
    assert provenance().code.endswith(", with changes that are not committed")
    monkeypatch.setenv("PATH", "")
    assert "commit" not in provenance().code


@pytest.mark.parametrize(
    ("bounds", "description"),
    [
        (RunBounds(-1, 5, 1), "trainer.max_steps=5"),
        (RunBounds(3, -1, 1), "trainer.max_epochs=3"),
        (RunBounds(3, 5, 1), "trainer.max_epochs=3 or trainer.max_steps=5, whichever comes first"),
    ],
)
def test_only_limits_that_are_set_are_shown(bounds: RunBounds, description: str) -> None:
    assert str(bounds) == description


def test_a_run_without_steps_is_reported_in_one_line(tones: Path, tmp_path: Path) -> None:
    settings = settings_with(
        *TINY, *tone_corpus(tones), f"run_dir={tmp_path / 'run'}", "+trainer.limit_train_batches=0"
    )
    with refused(InputError, "trainer.limit_train_batches; got 0"):
        train(settings)
