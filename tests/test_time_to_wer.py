"""benchmarks.time_to_wer compares the CPU time of trainings to a WER in asr and in other toolkits."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asr.core.data.manifest import Utterance
from asr.errors import InputError
from benchmarks.time_to_wer import watch as clock
from benchmarks.time_to_wer.__main__ import PEERS, Contest, main, planned
from benchmarks.time_to_wer.recipe import ASR, PUBLISHED, Recipe, equal, trials
from benchmarks.time_to_wer.watch import Point, Watch, time_to
from tests.conftest import TINY, tone_corpus
from tests.refusals import refused

POINTS = [Point(10.0, 1, 1.1), Point(20.0, 2, 0.3), Point(30.0, 3, 0.05), Point(40.0, 4, 0.2)]


@pytest.mark.parametrize(("wer", "seconds"), [(0.3, 20.0), (0.175, 25.0), (0.05, 30.0), (0.7, 15.0), (0.01, None)])
def test_the_time_to_a_wer_is_interpolated_between_evaluations(wer: float, seconds: float | None) -> None:
    assert time_to(wer, POINTS) == (seconds if seconds is None else pytest.approx(seconds))


def test_evaluations_are_spread_over_the_steps_and_take_no_time_on_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(clock, "cpu_seconds", lambda: now[0])
    valid = [Utterance("a", 1.0, "one two", "a")]
    watch = Watch(valid)

    def transcribe(utterances: Sequence[Utterance]) -> list[str]:
        now[0] += 50.0
        return ["one too" for _ in utterances]

    watch.begin(36)
    for step in range(1, 37):
        now[0] += 1.0
        watch.step(step, transcribe)
        watch.step(step, transcribe)  # as after each batch of an accumulated step
    assert [point.step for point in watch.points] == list(range(2, 37, 2))
    assert [point.seconds for point in watch.points] == [float(step) for step in range(2, 37, 2)]
    assert {point.wer for point in watch.points} == {0.5}
    assert watch.start_seconds == 100.0


def test_the_tables_have_each_toolkit_and_trials_differ_in_rate_and_batch() -> None:
    assert {recipe.toolkit for recipe in equal()} == {*PUBLISHED}
    for toolkit in PUBLISHED:
        assert len({tuple(recipe.overrides) for recipe in trials(toolkit)}) == 8


@pytest.mark.parametrize(
    ("reached", "chosen"),
    [({2: None, 4: 60.0, 5: 70.0}, 4), ({2: None, 4: 90.0, 5: 70.0}, 5), ({2: None, 4: None, 5: None}, 5)],
)
def test_a_toolkit_trains_for_the_epochs_with_which_it_reaches_the_wer_first(
    reached: dict[int, float | None], chosen: int
) -> None:
    class Trials(Contest):
        def run(self, recipe: Recipe, epochs: int, seed: int) -> dict[str, Any]:
            seconds = reached[epochs]
            assert seed == 3
            return {"points": [Point(1.0, 1, 1.0), Point(seconds or 99.0, 2, 0.5 if seconds is None else 0.1)]}

    options = argparse.Namespace(epochs=[*reached], seeds=[3, 4], wer=0.1)
    trials_of = Trials(argparse.Namespace(output_dir=Path(), overrides=[], peers=Path()))
    assert planned(equal()[0], options, trials_of) == chosen


def test_a_missing_environment_of_the_peers_is_refused(tmp_path: Path) -> None:
    absent = tmp_path / "python"
    with refused(InputError, f"--peers ... {absent}", cure="make .venv-nets"):
        main(["equal", "--peers", str(absent), "--output-dir", str(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize("toolkit", PUBLISHED)
def test_each_toolkit_trains_and_a_training_is_not_repeated(
    toolkit: str, tones: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if toolkit != ASR and not PEERS.exists():
        pytest.skip(f"{PEERS} is missing: make .venv-nets")
    command = ["equal", "--epochs", "2", "--seeds", "0", "--output-dir", str(tmp_path), "--toolkits", toolkit]
    command += ["--overrides", *TINY, *tone_corpus(tones)]
    assert main(command) == 0
    first = capfd.readouterr()
    rows = json.loads((tmp_path / "time_to_wer_equal.json").read_text())["rows"]
    assert {row["recipe"] for row in rows} == {recipe.name for recipe in equal() if recipe.toolkit == toolkit}
    assert all(row["CPU s of training"] > 0 and row["CPU s to start"] > 0 for row in rows)
    assert main(command) == 0
    again = capfd.readouterr()
    assert f"{toolkit}, CTC, seed 0" in first.err
    assert not again.err
    assert json.loads((tmp_path / "time_to_wer_equal.json").read_text())["rows"] == rows
    assert "Seed 0" in (tmp_path / "time_to_wer_equal_curves.html").read_text()
