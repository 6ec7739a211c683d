"""The mean of checkpoints as a bundle: selected checkpoints, refused input, and protection of an existing bundle."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from asr.average import main as average
from asr.core import build
from asr.core.checkpoint import bundle
from asr.core.checkpoint.load import PREFIX, checkpoint_extra, fitted_files, load_recognizer, write_bundle
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from tests.conftest import TINY, resolved
from tests.crashing import Killed, dies_at
from tests.forked import run_module
from tests.refusals import mentions, refused

BUNDLE_FILES = ["README.md", "characters.json", "config.json", "weights.safetensors"]
VALIDATED = {10: 0.9, 20: 0.2, 30: 0.4, 40: 0.3, 50: 0.3}  # validation WER by step


def tiny_recognizer(config: dict[str, Any], texts: list[str], seed: int) -> Recognizer:
    torch.manual_seed(seed)
    tokenizer = build.build_tokenizer(config)
    tokenizer.fit(texts)
    return build.build_recognizer(config, tokenizer, build.build_features(config))


def save(path: Path, *overrides: str, weights: int = 0, texts: list[str] | None = None, run_id: str = "a") -> Path:
    """Write a checkpoint with the parts that these tests need; `weights` is the seed of its weights."""
    config = resolved(*TINY, *overrides)
    recognizer = tiny_recognizer(config, texts or ["abc"], weights)
    content = {
        "state_dict": {PREFIX + name: weight for name, weight in recognizer.model.state_dict().items()},
        "optimizer_states": [{"state": {0: torch.zeros(3)}}],
        "asr": checkpoint_extra(config, fitted_files(recognizer.model.tokenizer, recognizer.model.features)),
        "run": {"settings": {}, "position": {}, "total_steps": 0, "id": run_id},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(content, path)
    return path


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("average") / "run"
    for step, wer in VALIDATED.items():
        save(run_dir / "checkpoints" / f"step={step}-wer={wer:.4f}.ckpt", weights=step)
    for step in (25, 60):  # saved between validations
        save(run_dir / "checkpoints" / f"step={step}.ckpt", weights=step)
    return run_dir


@pytest.fixture
def run_dir(shared_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shared_run, tmp_path / "run"))


def checkpoints(run_dir: Path, *steps: int) -> list[Path]:
    return [next((run_dir / "checkpoints").glob(f"step={step}[-.]*ckpt")) for step in steps]


def mean_of(paths: list[Path]) -> dict[str, Tensor]:
    """Return the plain mean, summed in float64 and rounded once."""
    states = [torch.load(path, weights_only=True)["state_dict"] for path in paths]
    return {
        name.removeprefix(PREFIX): (sum(state[name].double() for state in states) / len(states)).to(first.dtype)
        for name, first in states[0].items()
    }


def test_a_share_of_the_start_model_is_mixed_into_the_average(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start, out, chosen = tmp_path / "start", tmp_path / "out", checkpoints(run_dir, 20, 40)
    write_bundle(start, [save(tmp_path / "start.ckpt", weights=7)], "card")
    given = [str(run_dir), "--best", "2", "--start", str(start), "--output-dir", str(out)]
    for option, share in (([], 0.3), (["--share", "0.875"], 0.875)):
        assert average([*given, *option]) == 0
        mixed_in = f"with a share of {share} of {start}"
        assert capsys.readouterr().out.endswith(f", {mixed_in}\n")
        assert f"2 checkpoints, {mixed_in}" in (out / "README.md").read_text()
        before, mixed = load_file(start / "weights.safetensors"), load_file(out / "weights.safetensors")
        for name, mean in mean_of(chosen).items():
            expected = (1 - share) * mean.double() + share * before[name].double()
            torch.testing.assert_close(mixed[name].double(), expected, rtol=1e-6, atol=1e-7)
        assert any(not torch.allclose(mean, before[name]) for name, mean in mean_of(chosen).items())
    load_recognizer(out)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--share", "0.2"], "--share ... --start; got --share 0.2"),
        (["--start", "START", "--share", "1"], "--share; got 1"),
        (["--start", "START", "--share", "nan"], "--share; got nan"),
        (["--start", "nowhere"], "nowhere"),
        (["--start", "WIDE"], "of the shapes"),
        (["--start", "OTHER"], "have the tokens"),
    ],
)
def test_an_invalid_start_is_refused(run_dir: Path, tmp_path: Path, options: list[str], message: str) -> None:
    for name, overrides, texts in (("START", [], "abc"), ("WIDE", ["encoder.dim=64"], "abc"), ("OTHER", [], "xyz")):
        write_bundle(tmp_path / name, [save(tmp_path / f"{name}.ckpt", *overrides, texts=[texts])], "card")
    options = [str(tmp_path / option) if option.isupper() else option for option in options]
    with refused(InputError, message):
        average([str(run_dir), "--output-dir", str(tmp_path / "out"), *options])
    assert not (tmp_path / "out").exists()


def assert_weights(bundle: Path, expected: dict[str, Tensor]) -> None:
    weights = load_file(bundle / "weights.safetensors")
    assert weights.keys() == expected.keys()
    # Equal bit for bit: another order of summation changes only digits that the rounding to float32 removes.
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ([], [20, 40, 50, 30]),  # step 10 is left out: its WER of 0.9 is far from the best, 0.2
        (["--best", "1"], [20]),
        (["--best", "2"], [20, 40]),  # if WERs are equal, the older checkpoint is chosen
        (["--last", "2"], [40, 50]),
        (["--last", "99"], [10, 20, 30, 40, 50]),
    ],
)
def test_the_bundle_of_a_run_is_the_float64_mean_of_the_chosen_checkpoints(
    run_dir: Path, tmp_path: Path, options: list[str], steps: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deeper" / "out"
    assert average([str(run_dir), "--output-dir", str(out), *options]) == 0
    chosen = checkpoints(run_dir, *steps)
    count = f"{len(steps)} checkpoint" + ("s" if len(steps) > 1 else "")
    names = ", ".join(path.stem for path in chosen)
    printed = capsys.readouterr()
    assert printed.out == f"{out}: the mean of {count}: {names}\n"
    few = "99 checkpoints were requested, but the run stored only 5 (checkpoint.keep)\n"
    assert printed.err == (few if "99" in options else "")
    assert_weights(out, mean_of(chosen))
    card = (out / "README.md").read_text()
    assert [line[2:] for line in card.splitlines() if line.startswith("* ")] == [path.stem for path in chosen]
    assert count in card
    assert sorted(path.name for path in out.iterdir()) == BUNDLE_FILES
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_checkpoints_given_as_files_are_averaged_even_if_they_were_not_validated(run_dir: Path, tmp_path: Path) -> None:
    files = [*checkpoints(run_dir, 60, 10, 25), save(tmp_path / "elsewhere.ckpt", weights=7)]
    assert average([*map(str, files), "--output-dir", str(tmp_path / "out")]) == 0
    assert_weights(tmp_path / "out", mean_of(files))


def test_the_averaged_bundle_can_be_loaded_and_transcribes(run_dir: Path, tmp_path: Path) -> None:
    average([str(run_dir), "--output-dir", str(tmp_path / "out")])
    recognizer = load_recognizer(tmp_path / "out")
    assert len(recognizer.transcribe([torch.zeros(8000)], sample_rate=16_000)) == 1
    assert recognizer.model.state_dict().keys() == mean_of(checkpoints(run_dir, 20)).keys()


def test_a_bundle_of_one_checkpoint_has_exactly_its_weights(run_dir: Path, tmp_path: Path) -> None:
    (file,) = checkpoints(run_dir, 30)
    average([str(file), "--output-dir", str(tmp_path / "out")])
    weights = load_file(tmp_path / "out" / "weights.safetensors")
    assert all(torch.equal(weights[name], expected) for name, expected in mean_of([file]).items())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda path: save(path, "encoder.dim=64"), "encoder.dim: 32 -> 64"),
        (lambda path: save(path, "normalizer=as_written"), "normalizer: 'basic' -> 'as_written'"),
        (lambda path: save(path, texts=["abd"]), "files.characters.json"),
        (lambda path: save(path, run_id="b"), "run: 'a' -> 'b'"),
    ],
)
def test_checkpoints_of_different_runs_are_refused_with_the_difference(
    run_dir: Path, tmp_path: Path, other: Callable[[Path], Path], message: str
) -> None:
    files = [*checkpoints(run_dir, 10), other(tmp_path / "other.ckpt")]
    with refused(InputError, f"{files[1]} ... {files[0]} ... {message}"):
        average([*map(str, files), "--output-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def edited(path: Path, edit: Callable[[dict[str, Any]], object]) -> Path:
    """Change the contents of a checkpoint."""
    content = torch.load(path, weights_only=True)
    edit(content)
    torch.save(content, path)
    return path


BIAS = PREFIX + "head.ctc.linear.bias"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda content: content["state_dict"].pop(BIAS),
            "head.ctc.linear.bias ... 4",
        ),
        (lambda content: content["state_dict"].update({BIAS: torch.zeros(9)}), "linear.bias ... (9,) float32 ... (4,)"),
        (lambda content: content["state_dict"].update({BIAS: torch.zeros(4).half()}), "bias ... (4,) float16"),
        (
            lambda content: content["state_dict"].update({PREFIX + "x": torch.zeros(1)}),
            "x is (1,) float32",
        ),
    ],
)
def test_checkpoints_with_other_tensors_are_refused_and_a_differing_tensor_is_named(
    run_dir: Path, tmp_path: Path, edit: Any, message: str
) -> None:
    files = checkpoints(run_dir, 10, 20)
    edited(files[1], edit)
    with refused(InputError, message):
        average([*map(str, files), "--output-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda content: content.pop("state_dict"), "KeyError: 'state_dict'"),
        (lambda content: content.pop("asr"), "not from asr.train"),
        (lambda content: content.update(asr=3), "damaged: TypeError"),
        (lambda content: content["asr"].update(config={"encoder": torch.zeros(1)}), "damaged: TypeError"),
        (lambda content: content["asr"].update(config={}), "config ... normalizer, tokenizer"),
        (lambda content: content.update(state_dict={PREFIX + "x": "y"}), "weights ... tensors"),
        (lambda content: content.update(state_dict={}), "weights ... tensors"),
        (lambda content: content["asr"]["files"].update({3: torch.zeros(1)}), "plain names; got 3"),
        (lambda content: content["asr"]["files"].update({"../../escaped": torch.zeros(1)}), "'../../escaped'"),
        (lambda content: content["asr"]["files"].update({"/tmp/escaped": torch.zeros(1)}), "plain names"),
        (lambda content: content["asr"]["files"].update({".hidden": torch.zeros(1)}), "plain names"),
        (lambda content: content["asr"]["files"].update({"config.json": torch.zeros(1)}), "plain names"),
    ],
)
def test_a_checkpoint_of_another_program_is_refused_in_one_line(
    run_dir: Path, tmp_path: Path, edit: Any, message: str
) -> None:
    (file,) = checkpoints(run_dir, 10)
    edited(file, edit)
    before = sorted(tmp_path.rglob("*"))
    with refused(InputError, message):
        average([str(file), "--output-dir", str(tmp_path / "out")])
    assert sorted(tmp_path.rglob("*")) == before, "no file was written"


def damaged(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1  # change a bit of a weight
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged, "checkpoint ... checksum"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "checkpoint ... File"),
        (lambda path: path.write_text("text"), "checkpoint ... File"),
        (lambda path: path.unlink(), "step=10-wer=0.9000.ckpt: no such checkpoint"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_in_the_error(
    run_dir: Path, tmp_path: Path, damage: Any, message: str
) -> None:
    files = checkpoints(run_dir, 10, 20)
    damage(files[0])
    with refused(InputError, message):
        average([*map(str, files), "--output-dir", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--best", "0"], "--best; got 0"),
        (["run", "--last", "-2"], "--last; got -2"),
        (["run", "run"], "sources ... checkpoint files"),
        (["run", "run/checkpoints/step=25.ckpt"], "sources ... checkpoint files"),
        (["run/checkpoints/step=25.ckpt", "--last", "2"], "checkpoint files; got checkpoint files"),
        (["run/checkpoints/step=25.ckpt", "run/../run/checkpoints/step=25.ckpt"], "step=25.ckpt ... step=25.ckpt"),
        (["run/bundle"], "validated checkpoints ... checkpoints/step=…"),
        (["nowhere"], "nowhere: no such checkpoint"),
        (["nowhere", "--last", "2"], "no such checkpoint"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    run_dir: Path, tmp_path: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run_dir / "bundle").mkdir()
    monkeypatch.chdir(tmp_path)
    with refused(InputError, message):
        average([*arguments, "--output-dir", "out"])


def test_a_run_without_validations_has_no_best_checkpoints(run_dir: Path, tmp_path: Path) -> None:
    for path in checkpoints(run_dir, *VALIDATED):
        path.unlink()
    with refused(InputError, "of checkpoints"):
        average([str(run_dir), "--output-dir", str(tmp_path / "out")])


class _Evil:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.witness),))


def test_a_malicious_checkpoint_is_refused_in_one_line_and_executes_nothing(run_dir: Path, tmp_path: Path) -> None:
    (file,) = checkpoints(run_dir, 20)
    witness = tmp_path / "owned"
    content = torch.load(file, weights_only=True) | {"callbacks": _Evil(witness)}
    torch.save(content, file)
    ended = run_module("asr.average", run_dir, "--output-dir", tmp_path / "out")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert mentions(ended.stderr, f"{file} ... running code")
    assert ended.stderr.count("\n") == 1
    assert not witness.exists()
    assert not (tmp_path / "out").exists()
    torch.load(file, weights_only=False)
    assert witness.exists(), "an ordinary load executes the payload"


# ---- replacement of a bundle


@pytest.fixture
def old_bundle(run_dir: Path, tmp_path: Path) -> Path:
    write_bundle(tmp_path / "out", checkpoints(run_dir, 10), "old")
    return tmp_path / "out"


def is_whole(bundle: Path, card: str) -> bool:
    load_recognizer(bundle)
    names = sorted(path.name for path in bundle.iterdir())
    return names == BUNDLE_FILES and (bundle / "README.md").read_text() == card


def test_an_older_bundle_is_replaced_even_through_a_link(run_dir: Path, tmp_path: Path, old_bundle: Path) -> None:
    (tmp_path / "link").symlink_to(old_bundle)
    write_bundle(tmp_path / "link", checkpoints(run_dir, 20, 30), "new")
    assert (tmp_path / "link").is_symlink()
    assert is_whole(old_bundle, "new")
    assert_weights(old_bundle, mean_of(checkpoints(run_dir, 20, 30)))


def test_an_empty_folder_receives_the_bundle(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_bundle(tmp_path / "out", checkpoints(run_dir, 10), "new")
    assert is_whole(tmp_path / "out", "new")


@pytest.mark.parametrize(
    ("strange", "message"),
    [
        (lambda out: (out / "notes.txt").write_text("mine"), "it contains notes.txt. Give another folder"),
        (lambda out: (out / "data").mkdir(), "it contains data"),
        (lambda out: (out / "weights.safetensors").unlink(), "it contains README.md, characters.json, config.json"),
        (
            lambda out: (shutil.rmtree(out), out.mkdir(), (out / "README.md").write_text("mine")),
            "it contains README.md",
        ),
        (lambda out: (shutil.rmtree(out), out.write_text("mine")), "is a file"),
    ],
)
def test_a_folder_that_contains_other_files_is_not_changed(
    run_dir: Path, old_bundle: Path, strange: Any, message: str
) -> None:
    strange(old_bundle)
    before = {path: path.read_bytes() if path.is_file() else None for path in old_bundle.parent.rglob("*")}
    with refused(InputError, message):
        average([str(run_dir), "--output-dir", str(old_bundle)])
    assert before == {path: path.read_bytes() if path.is_file() else None for path in old_bundle.parent.rglob("*")}


@pytest.mark.parametrize("call", range(12))
def test_after_a_kill_at_any_point_the_old_or_new_bundle_is_intact_and_the_next_call_succeeds(
    run_dir: Path, old_bundle: Path, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dies_at(call, monkeypatch) as calls:
        try:
            write_bundle(old_bundle, checkpoints(run_dir, 20), "new")
        except Killed:
            pass
        else:
            assert len(calls) < 12, "the range of `call` must include every system call"
    places = [old_bundle, old_bundle.with_name(".out.replaced")]
    assert any(place.is_dir() and (is_whole(place, "old") or is_whole(place, "new")) for place in places)

    write_bundle(old_bundle, checkpoints(run_dir, 30), "next")
    assert is_whole(old_bundle, "next")
    assert sorted(path.name for path in old_bundle.parent.iterdir()) == ["out", "run"]


@pytest.mark.parametrize("killed", [False, True], ids=["alone", "after a kill between the old and the new bundle"])
def test_a_full_disk_is_reported_in_one_line_and_the_old_bundle_remains(
    run_dir: Path, old_bundle: Path, killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if killed:
        old_bundle.rename(old_bundle.with_name(".out.replaced"))
    monkeypatch.setattr(bundle, "save_file", full)
    with refused(InputError, "space left"):
        write_bundle(old_bundle, checkpoints(run_dir, 20), "new")
    assert is_whole(old_bundle, "old")
    assert sorted(path.name for path in old_bundle.parent.iterdir()) == ["out", "run"]


def test_the_same_checkpoints_give_the_same_bytes(run_dir: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_bundle(tmp_path / name, checkpoints(run_dir, 20, 30), "card")
    for file in BUNDLE_FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert json.loads((tmp_path / "a" / "config.json").read_text())["encoder"]["dim"] == 32
