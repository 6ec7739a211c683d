"""recipes.convert.bundle: bundles of formats that were never released become bundles of today's format."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from asr.core.checkpoint.formats import FORMAT
from asr.core.checkpoint.load import write_bundle
from asr.errors import InputError
from recipes.convert.bundle import convert, main
from tests.bundles.make import in_format_11, log_probs
from tests.refusals import refused
from tests.test_average import save

HERE = Path(__file__).parent / "bundles"
SINCE = {"tdt": ("fast_emit",), "transducer": ("durations", "sigma", "omega", "fast_emit")}  # settings after format 10


@pytest.mark.parametrize("number", [9, 11, 12, 13])
def test_a_bundle_keeps_every_tensor_and_gives_the_log_probs_stored_with_it(number: int, tmp_path: Path) -> None:
    old = HERE / f"format-{number}"
    assert main([str(old), str(tmp_path / "new")]) == 0
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (old, tmp_path / "new"))
    assert {key for key in before | after if before.get(key) != after.get(key)} <= {"format", "encoder", "features"}
    assert number >= 12 or in_format_11(after["encoder"]) == before["encoder"]
    assert before["features"].items() <= after["features"].items()
    assert after["format"] == FORMAT
    for path in old.iterdir():
        assert path.name == "config.json" or path.read_bytes() == (tmp_path / "new" / path.name).read_bytes()
    expected = torch.tensor(json.loads((HERE / f"format-{number}.json").read_text()))
    torch.testing.assert_close(log_probs(tmp_path / "new"), expected, rtol=0, atol=1e-3)  # as in test_bundle_formats.py


def test_a_converted_adapter_fits_its_converted_base(tmp_path: Path) -> None:
    for name in ("format-9", "adapter-9"):
        convert(HERE / name, tmp_path / name)
    expected = torch.tensor(json.loads((HERE / "adapter-9.json").read_text()))
    torch.testing.assert_close(log_probs(tmp_path / "adapter-9", tmp_path / "format-9"), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["tdt", "transducer"])
@pytest.mark.parametrize("search", ["greedy", "beam"])
def test_a_transducer_of_format_10_becomes_the_bundle_that_is_written_today(
    kind: str, search: str, tmp_path: Path
) -> None:
    save(tmp_path / "step=1.ckpt", f"head={kind}", f"decode=transducer_{search}", texts=["abc"], weights=1)
    write_bundle(tmp_path / "run" / "bundle", [tmp_path / "step=1.ckpt"], "A card.")
    shutil.copytree(tmp_path / "run", tmp_path / "old")
    as_format_10(tmp_path / "old" / "bundle", kind)
    convert(tmp_path / "old", tmp_path / "new")
    for path in (tmp_path / "run" / "bundle").iterdir():
        if path.name == "config.json":
            assert json.loads(path.read_text()) == json.loads((tmp_path / "new" / path.name).read_text())
        else:
            assert path.read_bytes() == (tmp_path / "new" / path.name).read_bytes()


def as_format_10(bundle: Path, kind: str) -> None:
    """Write a bundle of today as asr wrote it in format 10: with two kinds of head, joiner and decoder."""
    config = json.loads((bundle / "config.json").read_text())
    settings = {key: value for key, value in config["head"].items() if key not in SINCE[kind]}
    decode = config["decode"] | {"name": config["decode"]["name"].replace("transducer", kind)}
    config |= {
        "format": 10,
        "encoder": in_format_11(config["encoder"]),
        "head": settings | {"name": kind},
        "decode": decode,
    }
    (bundle / "config.json").write_text(json.dumps(config))
    if kind == "tdt":
        path = bundle / "weights.safetensors"
        renamed = {name.replace("head.joiner.", "head.duration_joiner."): w for name, w in load_file(path).items()}
        save_file(renamed, path)


def test_the_metadata_of_the_weights_the_normalizer_and_the_search_of_a_rescoring_of_format_10_are_converted(
    tmp_path: Path,
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    save_file({"head.duration_joiner.x": torch.ones(2)}, old / "weights.safetensors", {"settings": "{}"})
    decode = {"name": "lm_rescoring", "first": {"name": "tdt_beam"}}
    (old / "config.json").write_text(json.dumps({"format": 10, "normalizer": "basic_1", "decode": decode}))
    convert(old, tmp_path / "new")
    with safe_open(tmp_path / "new" / "weights.safetensors", "pt") as file:
        assert (list(file.keys()), file.metadata()) == (["head.joiner.x"], {"settings": "{}"})
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert (config["normalizer"], config["decode"]["name"]) == ("basic", "transducer_beam")


def broken(**changes: object) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return write


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (broken(format=8), "format ... 9, 10, 11"),
        (broken(format=FORMAT), "format ... no conversion"),
        (broken(head=3), "OLD ... config.json"),
        (broken(head={"name": "tdt"}, base={}), "adapter ... durations ... asr.merge"),
        (lambda folder: (folder / "config.json").write_text("[]"), "OLD ... config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "OLD ... config.json"),
        (lambda folder: (folder / "config.json").unlink(), "OLD ... config.json"),
    ],
)
def test_other_folders_are_refused_and_nothing_is_written(
    damage: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    shutil.copytree(HERE / "format-9", tmp_path / "old")
    damage(tmp_path / "old")
    with refused(InputError, message):
        convert(tmp_path / "old", tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_damaged_weights_and_an_existing_folder_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(HERE / "format-9", tmp_path / "old")
    with refused(InputError, "NEW ... another name"):
        convert(tmp_path / "old", tmp_path / "old")
    (tmp_path / "old" / "weights.safetensors").write_bytes(b"x" * 20)
    assert main([str(tmp_path / "old"), str(tmp_path / "new")]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
