"""A run of an earlier version of asr is resumed if its settings are equivalent."""

from pathlib import Path
from typing import Any

import pytest
import torch

from asr.core.checkpoint.formats import FORMAT
from asr.core.checkpoint.load import checkpoint_extra
from asr.core.data.position import Position, Share, start_of_epoch
from asr.core.run.resume import changes, check_allowed, find_resume
from asr.errors import InputError
from tests.bundles.make import in_format_11
from tests.conftest import resolved
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


def test_many_changed_settings_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    changed = changes(today(), today("encoder=transformer", "head=ctc", "seed=3"))
    with refused(InputError, f"{tmp_path} ... seed: 0 -> 3 ... and {len(changed) - 3} more") as error:
        check_allowed({"seed": changed["seed"], **changed}, tmp_path, [])
    assert len(str(error.value)) < 400


def test_removing_a_component_is_a_change() -> None:
    assert changes(today("augment=[gain]"), today("augment=[]")).keys() == {"augment"}


def save(folder: Path, settings: dict[str, Any], format_number: int = FORMAT) -> None:
    """Write a checkpoint at step 3: after three batches of the second epoch, on one process."""
    extra = checkpoint_extra(today(), {})
    extra["config"]["format"] = format_number
    position = {"epoch": 1, "shares": [[1, 3]], "skipped": 0}
    run = {"settings": settings, "total_steps": 9, "id": "x", "position": position}
    torch.save({"run": run, "asr": extra, "state_dict": {}}, folder / "step=3.ckpt")


@pytest.mark.parametrize(
    ("rounding", "position"), [(None, Position(1, (Share(1, 3),))), (16, start_of_epoch(1, 1))], ids=str
)
def test_an_epoch_that_was_planned_with_rounded_lengths_begins_again(
    rounding: int | None, position: Position, tmp_path: Path
) -> None:
    old = today()
    save(tmp_path, old | {"data": old["data"] | {"lengths_per_doubling": rounding}})
    resume = find_resume(tmp_path)
    assert resume is not None
    assert resume.position == position
    assert changes(resume.run.settings, today()) == {}


def test_a_run_of_format_11_resumes_with_the_settings_of_its_blocks_in_their_section(tmp_path: Path) -> None:
    save(tmp_path, today() | {"encoder": in_format_11(today()["encoder"])}, format_number=11)
    resume = find_resume(tmp_path)
    assert resume is not None
    assert changes(resume.run.settings, today()) == {}
    assert changes(resume.run.settings, today("encoder.block.num_heads=2")).keys() == {"encoder.block.num_heads"}


def test_a_run_of_an_unreleased_format_is_refused_with_the_command_that_converts_its_bundle(tmp_path: Path) -> None:
    save(tmp_path, today(), format_number=9)
    with refused(InputError, "format ... recipes.convert.bundle", got=9):
        find_resume(tmp_path)
