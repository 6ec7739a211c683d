"""A run of an earlier version of asr is resumed if its settings are equivalent."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.checkpoint.formats import FORMAT
from asr.checkpoint.load import checkpoint_extra
from asr.errors import InputError
from asr.run.resume import changes, find_resume
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.refusals import refused

LEARNT = {"world_size": 1, "manifests": {}, "fitted": {}}


def today(*overrides: str) -> dict[str, Any]:
    return resolved(*overrides) | LEARNT


def without(settings: dict[str, Any], section: str, name: str) -> dict[str, Any]:
    return settings | {section: {key: value for key, value in settings[section].items() if key != name}}


def test_a_setting_that_the_older_run_did_not_have_counts_as_its_default() -> None:
    for section, name in (("data", "max_cells"), ("init", "frozen"), ("trainer", "gradient_clip_val")):
        assert changes(without(today(), section, name), today()) == {}
    assert changes({key: value for key, value in today().items() if key != "ema"}, today()) == {}
    changed = changes(without(today(), "data", "max_cells"), today("data.max_cells=5"))
    assert changed == {"data.max_cells": "data.max_cells: 250000000.0 -> 5"}


def test_an_unknown_old_setting_is_ignored_but_an_argument_of_the_trainer_is_not() -> None:
    old = today()
    assert changes(old | {"data": old["data"] | {"gone": 1}, "also_gone": 2}, today()) == {}
    assert changes(today("+trainer.limit_val_batches=3"), today()).keys() == {"trainer.limit_val_batches"}


def test_removing_a_component_is_a_change() -> None:
    assert changes(today("augment=[gain]"), today("augment=[]")).keys() == {"augment"}


@pytest.mark.parametrize("number", [3, FORMAT])
def test_components_stored_in_an_older_format_are_converted_before_they_are_compared(
    number: int, tmp_path: Path
) -> None:
    """Up to format 3, decode had the settings of decode.fusion, and word_insertion_bonus was called word_score."""
    normalizer = "normalizer=as_written"
    old = today("decode=beam", normalizer)
    if number == 3:
        named, new = {"word_insertion_bonus": "word_score"}, ("name", "spelling")
        fusion = {named.get(key, key): value for key, value in old["decode"]["fusion"].items() if key not in new}
        old["decode"] = {key: value for key, value in old["decode"].items() if key != "fusion"} | fusion
    extra = checkpoint_extra(old, {})
    extra["config"]["format"] = number
    position = {"epoch": 0, "shares": [[1, 3]], "skipped": 0}
    run = {"settings": old, "total_steps": 9, "id": "x", "position": position}
    torch.save({"run": run, "asr": extra, "state_dict": {}}, tmp_path / "step=3.ckpt")
    resume = find_resume(tmp_path)
    assert resume is not None
    assert changes(resume.run.settings, today("decode=beam", normalizer)) == {}


def test_a_run_started_with_the_first_version_of_the_basic_normalizer_is_resumed_with_it(
    tones: Path, tmp_path: Path
) -> None:
    run = [*TINY, *tone_corpus(tones), f"run_dir={tmp_path}", "checkpoint.every_steps=2"]
    changed = ["trainer.max_steps=3", "resume.allow=[trainer]"]
    train(settings_with(*run, "trainer.max_steps=2", "normalizer=basic_1"))
    for path in (tmp_path / "checkpoints").iterdir():  # as version 9 wrote it
        content = torch.load(path, weights_only=True)
        content["asr"]["config"] |= {"format": 9, "normalizer": "basic"}
        content["run"]["settings"]["normalizer"] = "basic"
        torch.save(content, path)
    train(settings_with(*run, *changed))
    assert json.loads((tmp_path / "bundle" / "config.json").read_text())["normalizer"] == "basic_1"
    with refused(InputError, "normalizer: 'basic_1' -> 'as_written'"):
        train(settings_with(*run, *changed, "normalizer=as_written"))
