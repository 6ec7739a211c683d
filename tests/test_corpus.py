"""A missing corpus is generated only by its own recipe, and a user's files are never replaced."""

from pathlib import Path

import pytest

from asr.core.data.corpus import prepare_if_absent
from asr.errors import InputError
from tests.conftest import settings_with
from tests.refusals import mentions, refused


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A folder with a user's manifests and audio."""
    (tmp_path / "audio").mkdir()
    for name in ("train.jsonl", "valid.jsonl", "test.jsonl", "audio/train-00001.flac"):
        (tmp_path / name).write_text("mine")
    return tmp_path


def content(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def prepare(folder: Path, *overrides: str) -> None:
    prepare_if_absent(settings_with(f"corpus.dir={folder}", *overrides).corpus)


def test_a_misspelt_manifest_beside_existing_ones_is_refused_and_nothing_is_generated(mine: Path) -> None:
    before = content(mine)
    with refused(InputError, "manifests ... dev.jsonl"):
        prepare(mine, "corpus.name=mine", "corpus.valid=[dev.jsonl]")
    assert content(mine) == before


def test_the_recipe_of_another_corpus_is_refused(tmp_path: Path) -> None:
    must = "corpus.prepare; got recipes.mini.prepare"
    with refused(InputError, must):
        prepare(tmp_path / "new", "corpus.name=mine")
    assert not (tmp_path / "new").exists()


def test_a_recipe_refuses_a_folder_with_files_that_it_would_replace(
    mine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "valid", "test"):
        (mine / f"{split}.jsonl").unlink()
    before = content(mine)
    with refused(InputError, "ended with status 1"):
        prepare(mine)
    assert mentions(capfd.readouterr().err, "--output-dir ... recipes.mini.prepare")
    assert content(mine) == before


@pytest.mark.apps
def test_a_command_that_does_not_make_the_manifests_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    must = "corpus.prepare ... recipes.convert"
    with refused(InputError, must):
        prepare(tmp_path / "new", "corpus.name=mine", "corpus.prepare='recipes.convert --help'")
    assert "usage: python -m recipes.convert" in capfd.readouterr().out
