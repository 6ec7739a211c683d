"""Programs above the limit of an ONNX file share a data file with their weights; no program reads another file."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from tests.refusals import refused

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import numpy as np
import onnx

from asr.apps.bulk.fingerprints import model_fingerprint
from asr.apps.export import program_weights
from asr.apps.export.program_weights import moved_out, write
from asr.apps.export.site import write_site
from asr.base.onnx.session import run, session
from asr.core.checkpoint.bundle import read_exported
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from asr.export import main as export
from tests.test_export_transducers import by_sherpa, sound, texts_of, transducer_bundle

LIMIT = 2**20  # bytes; above the programs without their weights, below the weights of the encoder
NAMES = (("x",), ("y",))
WEIGHT = np.arange(1024, dtype=np.float32)


# ---- one program


def program_of(weight: onnx.TensorProto, *nodes: onnx.NodeProto, addend: str = "weight") -> onnx.ModelProto:
    """Return a program that adds an output of the nodes, or the weight, to its input."""
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1024]) for name in "xy")
    add = onnx.helper.make_node("Add", ["x", addend], ["y"])
    graph = onnx.helper.make_graph([*nodes, add], "net", [x], [y], [weight])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


def weight_in(file: str, name: str = "weight") -> onnx.TensorProto:
    """Return a tensor whose values are in a file."""
    tensor = onnx.numpy_helper.from_array(WEIGHT, name)
    onnx.external_data_helper.set_external_data(tensor, file, 0, WEIGHT.nbytes)
    tensor.ClearField("raw_data")
    return tensor


def as_weight(file: str) -> onnx.ModelProto:
    return program_of(weight_in(file))


def as_attribute(file: str) -> onnx.ModelProto:
    node = onnx.helper.make_node("Constant", [], ["constant"], value=weight_in(file))
    return program_of(onnx.numpy_helper.from_array(WEIGHT, "weight"), node, addend="constant")


def in_a_branch(file: str) -> onnx.ModelProto:
    out = onnx.helper.make_tensor_value_info("out", onnx.TensorProto.FLOAT, [1024])
    node = onnx.helper.make_node("Identity", ["inner"], ["out"])
    branch = onnx.helper.make_graph([node], "branch", [], [out], [weight_in(file, "inner")])
    true = onnx.helper.make_tensor("true", onnx.TensorProto.BOOL, [], [True])
    nodes = [onnx.helper.make_node("Constant", [], ["condition"], value=true)]
    nodes.append(onnx.helper.make_node("If", ["condition"], ["chosen"], then_branch=branch, else_branch=branch))
    return program_of(onnx.numpy_helper.from_array(WEIGHT, "weight"), *nodes, addend="chosen")


def test_a_program_runs_with_the_weights_in_its_data_file(tmp_path: Path) -> None:
    (tmp_path / "encoder.data").write_bytes(WEIGHT.tobytes())
    onnx.save(as_weight("encoder.data"), tmp_path / "encoder.onnx")
    [y] = run(session(tmp_path / "encoder.onnx", *NAMES), torch.ones(1024))
    torch.testing.assert_close(y, torch.from_numpy(WEIGHT + 1))


@pytest.mark.parametrize("place", [as_weight, as_attribute, in_a_branch])
@pytest.mark.parametrize(
    "file",
    ["../secret", "{folder}/secret", "secret", "./encoder.data", "inner/../encoder.data", "*/_ORT_MEM_ADDR_/*", ""],
)
def test_a_program_that_names_another_file_is_refused(
    tmp_path: Path, place: Callable[[str], onnx.ModelProto], file: str
) -> None:
    (tmp_path / "model" / "inner").mkdir(parents=True)
    for path in (tmp_path / "secret", tmp_path / "model" / "secret", tmp_path / "model" / "encoder.data"):
        path.write_bytes(WEIGHT.tobytes())
    named = file.format(folder=tmp_path)
    (tmp_path / "model" / "encoder.onnx").write_bytes(place(named).SerializeToString())
    with refused(InputError, "encoder.onnx ... encoder.data", got=named):
        session(tmp_path / "model" / "encoder.onnx", *NAMES)


def test_only_programs_of_an_encoder_have_a_data_file_and_each_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # ONNX Runtime looks for the data file of a program in memory in this folder
    (tmp_path / "encoder.data").write_bytes(WEIGHT.tobytes())
    content = as_weight("encoder.data").SerializeToString()
    for name in ("predictor.onnx", "model.onnx", "step.onnx", "strange.onnx"):
        (tmp_path / name).write_bytes(content)
        with refused(InputError, name, got="encoder.data"):
            session(tmp_path / name, *NAMES)
    with refused(InputError, "no other file", got="encoder.data"):
        session(content, *NAMES)


def test_a_data_file_that_is_absent_or_too_short_is_refused_in_one_line(tmp_path: Path) -> None:
    onnx.save(as_weight("encoder.data"), tmp_path / "encoder.onnx")
    with refused(InputError, "encoder.onnx ... encoder.data"):
        session(tmp_path / "encoder.onnx", *NAMES)
    (tmp_path / "encoder.data").write_bytes(WEIGHT.tobytes()[:-4])
    with refused(InputError, "encoder.onnx ... ONNX Runtime"):
        session(tmp_path / "encoder.onnx", *NAMES)


def test_a_program_that_fits_is_written_with_its_weights_as_if_it_never_had_a_data_file(tmp_path: Path) -> None:
    program = program_of(onnx.numpy_helper.from_array(WEIGHT, "weight"))
    content = program.SerializeToString()
    light = moved_out(program, tmp_path / "encoder.data")
    assert light.ByteSize() < WEIGHT.nbytes < len(content)
    files = write({"encoder.onnx": light}, tmp_path)
    assert files == {"encoder.onnx": tmp_path / "encoder.onnx"}
    assert files["encoder.onnx"].read_bytes() == content


def test_a_program_above_the_limit_without_a_data_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_weights, "MAX_BYTES", 1000)
    program = program_of(onnx.numpy_helper.from_array(WEIGHT, "weight"))
    with refused(InputError, f"joiner.onnx ... 1,000 bytes ... {program.ByteSize():,}"):
        write({"joiner.onnx": program}, tmp_path)


# ---- an exported folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a TDT's bundle, its export with a limit of 1 MB, and recordings."""
    folder = tmp_path_factory.mktemp("large")
    sizes = ["encoder.dim=160", "head.ctc_weight=0", "head.predictor.dim=12", "head.predictor.num_layers=1"]
    transducer_bundle(folder / "bundle", "head=tdt", "head/predictor=lstm", *sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_weights, "MAX_BYTES", LIMIT)
        assert export([str(folder / "bundle"), "-o", str(folder / "exported")]) == 0
    for number, seconds in enumerate((3.0, 1.2, 2.1)):
        soundfile.write(folder / f"{number}.wav", sound(seconds, number).numpy(), 16_000, subtype="FLOAT")
    return folder


def recordings(folder: Path) -> list[str]:
    return [str(path) for path in sorted(folder.glob("*.wav"))]


def test_the_weights_of_three_programs_are_written_once(exported: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in (exported / "exported").iterdir()}
    [data] = [name for name in sizes if name.endswith(".data")]
    programs = {"encoder.onnx", "encoder-waveform.onnx", "encoder-sherpa.onnx"}
    assert sizes[data] > LIMIT > max(sizes[name] for name in programs)
    for name in sizes:
        if name.endswith(".onnx"):
            onnx.checker.check_model(exported / "exported" / name)
            weights = onnx.load(exported / "exported" / name, load_external_data=False).graph.initializer
            files = {entry.value for weight in weights for entry in weight.external_data if entry.key == "location"}
            assert files == ({data} if name in programs else set())


def test_the_exported_model_gives_the_texts_of_its_source(exported: Path) -> None:
    paths = recordings(exported)
    assert texts_of(exported / "exported", paths) == texts_of(exported / "bundle", paths)


def test_the_data_file_belongs_to_the_model_and_is_not_one_of_its_texts(exported: Path, tmp_path: Path) -> None:
    model = read_exported(exported / "exported")
    assert "encoder.data" in model.programs
    assert "encoder.data" not in model.files
    copy = shutil.copytree(exported / "exported", tmp_path / "copy")
    before = model_fingerprint(copy, None, {})
    content = bytearray((copy / "encoder.data").read_bytes())
    content[0] ^= 1
    (copy / "encoder.data").write_bytes(content)
    assert model_fingerprint(copy, None, {}) != before


def test_a_model_without_its_data_file_or_with_a_link_in_its_place_is_refused(exported: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(exported / "exported", tmp_path / "copy")
    os.rename(copy / "encoder.data", tmp_path / "elsewhere")
    with refused(InputError, "encoder.onnx ... encoder.data"):
        load_recognizer(copy)
    (copy / "encoder.data").symlink_to(tmp_path / "elsewhere")
    with refused(InputError, "encoder.data ... elsewhere"):
        load_recognizer(copy)


def test_the_readme_names_the_programs_that_need_the_data_file(exported: Path) -> None:
    [row] = [
        line for line in (exported / "exported" / "README.md").read_text().splitlines() if "| `encoder.data`" in line
    ]
    assert all(f"`{name}`" in row for name in ("encoder.onnx", "encoder-waveform.onnx", "encoder-sherpa.onnx"))


def test_sherpa_onnx_reads_the_data_file_from_the_folder_of_the_program(exported: Path, tmp_path: Path) -> None:
    """sherpa-onnx computes its own features, and random weights amplify the differences, so texts are not compared."""
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    assert all(by_sherpa(exported / "exported", recordings(exported), place=tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize(("quantization", "limit", "is_shared"), [("int8", 3 * LIMIT, False), ("fp16", LIMIT, True)])
def test_a_quantised_model_has_a_data_file_only_if_a_program_is_above_the_limit(
    exported: Path, quantization: str, limit: int, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float32 programs are above both limits. The folder contains them before, and they are replaced."""
    monkeypatch.setattr(program_weights, "MAX_BYTES", limit)
    folder = shutil.copytree(exported / "exported", tmp_path / "exported")
    assert (folder / "encoder.data").stat().st_size > limit
    assert export([str(exported / "bundle"), "-o", str(folder), "--quantize", quantization]) == 0
    assert (folder / "encoder.data").exists() is is_shared
    assert all(path.stat().st_size <= limit for path in folder.glob("*.onnx"))
    assert all(texts_of(folder, recordings(exported)))


def test_a_page_of_a_model_with_a_data_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.data").write_bytes(b"weights")
    files: dict[str, Any] = {"model-waveform.onnx": tmp_path, "model.data": tmp_path / "model.data"}
    anything: Any = None
    with refused(InputError, "page ... --quantize int8"):
        write_site(tmp_path / "page", "x", anything, anything, files, anything, [])
