"""A missing corpus is generated only by its own recipe, and a user's files are never replaced."""

from pathlib import Path

import pytest

from asr.data.corpus import prepare_if_absent
from asr.errors import InputError
from tests.conftest import settings_with


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
    with pytest.raises(InputError, match=r"all manifests must exist; \S+dev\.jsonl does not, "):
        prepare(mine, "corpus.name=mine", "corpus.valid=[dev.jsonl]")
    assert content(mine) == before


def test_the_recipe_of_another_corpus_is_refused(tmp_path: Path) -> None:
    must = r"corpus\.prepare must be null or prepare the corpus mine; got recipes\.mini\.prepare, which makes mini"
    with pytest.raises(InputError, match=must):
        prepare(tmp_path / "new", "corpus.name=mine")
    assert not (tmp_path / "new").exists()


def test_a_recipe_refuses_a_folder_with_files_that_it_would_replace(
    mine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "valid", "test"):
        (mine / f"{split}.jsonl").unlink()
    before = content(mine)
    with pytest.raises(InputError, match="ended with status 1"):
        prepare(mine)
    assert (
        "--output-dir must be a folder without files that recipes.mini.prepare would replace" in capfd.readouterr().err
    )
    assert content(mine) == before


def test_a_command_that_does_not_make_the_manifests_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    must = (
        r"^corpus mine: corpus\.prepare must make the manifests; recipes\.convert ended without an error, but \S+train"
    )
    with pytest.raises(InputError, match=must):
        prepare(tmp_path / "new", "corpus.name=mine", "corpus.prepare='recipes.convert --help'")
    assert "usage: python -m recipes.convert" in capfd.readouterr().out
