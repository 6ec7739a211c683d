"""ONNX export: programs compute the model's outputs without torch; no program is written if its outputs differ."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from tests.refusals import refused

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx
import onnxruntime

from asr.align import main as align
from asr.apps.export import agreement, program
from asr.apps.export.quantization import QUANTIZATIONS, levelled, to_int8
from asr.base.onnx.session import run_net, session
from asr.base.settings.conf import names
from asr.base.text.normalize import get_normalizer
from asr.base.text.word_errors import count_errors, total
from asr.components.features.batched.front_end import FrontEnd
from asr.convert import main as convert
from asr.core.build import component
from asr.core.checkpoint.bundle import read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer, write_bundle
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.evaluation.result import evaluate
from asr.core.run.initialization import start_of
from asr.errors import InputError
from asr.evaluate import main as evaluate_command
from asr.export import main as export
from asr.interfaces import Features
from asr.transcribe import main as transcribe
from asr.tune import main as tune
from recipes.librispeech.prepare import main as prepare
from tests.conftest import SHARED, resolved, settings_with
from tests.nemo import MODEL, needs_model
from tests.test_average import save
from tests.tones import write_corpus

FEATURES = names("features")
NORMALIZATIONS = names("features/normalize")
TEXTS = ["ab ba", "a cab"]


# ---- features computed in batches


def made_features(name: str, normalize: str | None, **settings: Any) -> Features:
    chosen = [] if normalize is None else [f"features/normalize={normalize}"]
    config = resolved(f"features={name}", *chosen)["features"]
    features: Features = component("features", config | settings)()
    if normalize == "global_cmvn":
        features.normalize.fit([torch.randn(50, features.dim) * 3 - 8])
    return features


def sound(num_samples: int) -> Tensor:
    """Return noise that swells and fades like speech, with silence."""
    time = torch.arange(num_samples) / 16000
    waveform = 0.1 * (12 * time).sin().abs() * torch.randn(num_samples)
    waveform[num_samples // 2 : num_samples // 2 + 2000] = 0.0
    return waveform


@pytest.mark.parametrize(
    ("name", "normalize"),
    [(name, part) for name in FEATURES for part in (NORMALIZATIONS if name != "waveform" else [None])],
)
@torch.no_grad()
def test_batched_features_equal_those_of_each_utterance_alone_whatever_the_padding(
    name: str, normalize: str | None
) -> None:
    """The tolerance is 2e-4: compared with float64, the FFT has an error of 1e-4, the matrix transform half of that."""
    for settings in [{"pad_mode": mode} for mode in ("zeros", "reflect")] if name == "slaney_fbank" else [{}]:
        features = made_features(name, normalize, **settings)
        waveforms = [sound(length) for length in (16000, 1, 159, 160, 401, 0, 5, 24001)]
        batch = torch.full((len(waveforms), 25_001), float("nan"))
        for row, waveform in zip(batch, waveforms, strict=True):
            row[: len(waveform)] = waveform
        out, lengths = FrontEnd(features)(batch, torch.tensor([len(waveform) for waveform in waveforms]))
        for waveform, frames, length in zip(waveforms, out, lengths.tolist(), strict=True):
            expected = features(waveform)
            assert len(expected) == length
            short = len(expected) < 3  # the standard deviation of so few frames is almost 0; dividing by it gives noise
            torch.testing.assert_close(frames[:length], expected, rtol=1e-3, atol=0.01 if short else 2e-4)


def test_features_without_a_batched_form_are_refused_by_name() -> None:
    with refused(InputError, "batched form; got SimpleNamespace"):
        FrontEnd(cast(Features, SimpleNamespace()))


# ---- an exported folder


def texts_of(folder: Path, waveforms: list[Tensor]) -> list[str]:
    return [transcript.text for transcript in load_recognizer(folder).transcribe(waveforms, sample_rate=16_000)]


def tiny_bundle(folder: Path, *overrides: str) -> Path:
    """Write a bundle of an untrained net that emits many tokens."""
    checkpoint = save(folder / "step=1.ckpt", *overrides, texts=TEXTS)
    write_bundle(folder / "bundle", [checkpoint], "# tiny\n\nNot trained.\n")
    amplify(folder / "bundle")
    return folder / "bundle"


def amplify(folder: Path, silent: Sequence[int] = ()) -> None:
    """Let the head of a bundle amplify deviations from the mean, so that frames differ; `silent` tokens never occur."""
    bundle, model = read_bundle(folder), load_recognizer(folder).model
    features = model.features(sound(48000))[None]
    with torch.no_grad():
        average = model(features, torch.tensor([features.shape[1]])).out[0].mean(dim=0)
    [name] = [name for name in bundle.weights if name.startswith("head.") and name.endswith("linear.weight")]
    bias = bundle.weights[name.replace("weight", "bias")]
    bundle.weights[name] *= 100
    bias[:] = -bundle.weights[name] @ average
    bias[list(silent)] = -1e4
    replace_bundle(folder, bundle)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("tiny"), "features=slaney_fbank")


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.slow)])
def exported(bundle: Path) -> Path:
    """Export the bundle, which takes about 15 seconds: tests with this fixture are slow."""
    folder = bundle.with_name("exported")
    assert export([str(bundle), "-o", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Recordings of tones."""
    folder = tmp_path_factory.mktemp("speech")
    write_corpus(folder, {"test": ["abc ba", "fa", "cab deaf bad face"]})
    return sorted((folder / "audio").iterdir())


def waveform_of(path: Path) -> Tensor:
    return torch.from_numpy(soundfile.read(path, dtype="float32")[0])


def test_an_export_has_programs_for_any_batch_and_length_and_the_files_that_they_need(exported: Path) -> None:
    files = {file.name for file in exported.iterdir()}
    programs = {"model.onnx", "model-waveform.onnx", "model-sherpa.onnx"}
    assert files == programs | {"README.md", "characters.json", "config.json", "tokens.txt"}
    inputs = {}
    for name in programs:
        model = onnx.load(exported / name)
        onnx.checker.check_model(model)
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
        inputs[name] = {
            value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
            for value in model.graph.input
        }
        assert [value.name for value in model.graph.output] == ["log_probs", "log_probs_lengths"]
    assert inputs == {
        "model.onnx": {"features": ["batch", "frames", 80], "feature_lengths": ["batch"]},
        "model-waveform.onnx": {"waveforms": ["batch", "samples"], "sample_counts": ["batch"]},
        "model-sherpa.onnx": {"audio_signal": ["batch", 80, "frames"], "length": ["batch"]},
    }
    characters = sorted(set("".join(TEXTS)) - {" "})
    lines = ["<blk> 0", "▁ 1", *(f"{character} {number}" for number, character in enumerate(characters, start=2))]
    assert (exported / "tokens.txt").read_text(encoding="utf-8").splitlines() == lines
    compared = "Compared with the model on 4 made-up signals, each alone and all in one batch: outputs differ by"
    assert compared in (exported / "README.md").read_text(encoding="utf-8")


def test_an_exported_model_cannot_initialise_a_training_run(exported: Path) -> None:
    with refused(InputError, "init.from ... exported model"):
        start_of(settings_with(f"init.from={exported}").init)


def test_a_program_contains_no_path_of_the_machine_that_made_it(exported: Path) -> None:
    for path in exported.glob("*.onnx"):
        content = path.read_bytes()
        assert b".py" not in content
        assert str(Path(program.__file__).parents[2]).encode() not in content


def test_the_exported_model_gives_the_transcripts_of_its_source(
    exported: Path, bundle: Path, speech: list[Path]
) -> None:
    waveforms = [waveform_of(path) for path in speech]
    before, after = (load_recognizer(folder).transcribe(waveforms, sample_rate=16_000) for folder in (bundle, exported))
    for expected, actual in zip(before, after, strict=True):
        assert len(expected.text) > 3
        assert [(word.text, word.start, word.end) for word in actual.words] == [
            (word.text, word.start, word.end) for word in expected.words
        ]
        for word, other in zip(expected.words, actual.words, strict=True):
            assert other.confidence == pytest.approx(word.confidence, abs=1e-4)


def test_features_inside_the_program_give_equal_log_probs(exported: Path, bundle: Path, speech: list[Path]) -> None:
    opened = session(exported / "model-waveform.onnx", ("waveforms", "sample_counts"), program.NET_OUTPUTS)
    model = load_recognizer(bundle).model
    for path in speech:
        waveform = waveform_of(path)
        padded = torch.cat([waveform, torch.full((999,), float("inf"))])[None]
        log_probs, lengths = run_net(opened, padded, torch.tensor([len(waveform)]))
        features = model.features(waveform)[None]
        with torch.no_grad():
            encoded = model(features, torch.tensor([features.shape[1]]))
            expected = model.head.frame_head.log_probs(encoded.out)  # type: ignore[union-attr]
        assert torch.equal(lengths, encoded.lengths)
        torch.testing.assert_close(log_probs[:, : lengths[0]], expected, rtol=0, atol=2e-3)  # logits are scaled by 100


WITHOUT_TORCH = "import sys\nsys.modules['torch'] = None\n"  # importing torch then fails


def follow(folder: Path, number: int, recording: Path, tmp_path: Path) -> str:
    """Run program `number` of the README from another folder, without torch; it is saved in a copy of the folder."""
    programs = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    program = shutil.copytree(folder, tmp_path / "copy", dirs_exist_ok=True) / "program.py"
    program.write_text(WITHOUT_TORCH + programs[number], encoding="utf-8")
    command = [sys.executable, "-P", str(program), str(recording)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_program_in_the_readme_needs_no_torch_and_gives_the_same_text(
    exported: Path, bundle: Path, speech: list[Path], tmp_path: Path
) -> None:
    [expected] = texts_of(bundle, [waveform_of(speech[0])])
    assert follow(exported, 0, speech[0], tmp_path) == expected


SECTION = re.compile(
    r"((?:^    [^\n]+\n)+)\nSave this program as `(\w+\.py)`.*?```python\n(.*?)```", re.DOTALL | re.MULTILINE
)


def walk(folder: Path, recording: Path, place: Path) -> list[str]:
    """Execute the README's commands in an empty environment; return their output."""
    shutil.copytree(folder, place / "model")
    shutil.copy(recording, place / "model" / "recording.wav")
    subprocess.run([sys.executable, "-m", "venv", place / "environment"], check=True)
    python = place / "environment" / "bin" / "python"
    if subprocess.run([python, "-m", "pip", "install", "-q", "numpy"]).returncode:
        pytest.skip("nothing can be installed here")
    alone = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    alone.pop("PYTHONPATH", None)
    outputs = []
    for commands, name, content in SECTION.findall((folder / "README.md").read_text(encoding="utf-8")):
        (place / "model" / name).write_text(content, encoding="utf-8")
        install, *run = [line.strip() for line in commands.splitlines()]
        assert install.startswith("pip install ")
        subprocess.run(install, shell=True, cwd=place / "model", env=alone, check=True, stdout=subprocess.DEVNULL)
        for command in run:
            done = subprocess.run(command, shell=True, cwd=place / "model", env=alone, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            outputs.append(done.stdout.strip())
    assert subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode, (
        "the environment must not contain torch"
    )
    return outputs


def test_the_instructions_in_the_readme_give_the_text_without_torch(
    exported: Path, bundle: Path, speech: list[Path], tmp_path: Path
) -> None:
    by_onnxruntime, by_sherpa = walk(exported, speech[2], tmp_path)
    assert [by_onnxruntime] == texts_of(bundle, [waveform_of(speech[2])])
    assert len(by_sherpa) > 3


def test_the_commands_accept_the_exported_folder_as_a_model(
    exported: Path, bundle: Path, speech: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert transcribe([str(exported), str(speech[2])]) == 0
    [expected] = texts_of(bundle, [waveform_of(speech[2])])
    assert expected in capsys.readouterr().out
    manifest = tmp_path / "said.jsonl"
    write_manifest(manifest, [Utterance(str(speech[0]), soundfile.info(speech[0]).duration, "abc ba", "said")])
    assert align([str(exported), str(manifest)]) == 0
    assert evaluate_command([str(exported), str(manifest)]) == 0


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--device", "cuda"], "--device; got 'cuda'"),
        (["--precision", "bfloat16"], "--precision; got 'bfloat16'"),
    ],
)
def test_options_that_need_torch_are_refused(
    exported: Path, speech: list[Path], option: list[str], message: str
) -> None:
    with refused(InputError, message):
        transcribe([str(exported), str(speech[0]), *option])


def test_commands_that_need_weights_are_refused(exported: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with refused(InputError, "ONNX ... recognise speech"):
        tune([str(exported), str(tmp_path / "empty.jsonl")])
    with refused(InputError, "exported already"):
        export([str(exported), "-o", str(tmp_path / "again")])
    assert not (tmp_path / "again").exists()


def copied(exported: Path, folder: Path, names: dict[str, str]) -> Path:
    """Copy the folder, with some files replaced by others."""
    folder.mkdir()
    for file in exported.iterdir():
        (folder / file.name).write_bytes((exported / names.get(file.name, file.name)).read_bytes())
    return folder


def test_a_damaged_or_unsuitable_program_is_refused_in_one_line(exported: Path, tmp_path: Path) -> None:
    other = copied(exported, tmp_path / "other", {"model.onnx": "model-waveform.onnx"})
    with refused(InputError, "feature_lengths; got waveforms"):
        load_recognizer(other)
    (other / "model.onnx").write_bytes((exported / "model.onnx").read_bytes()[:1000])
    with refused(InputError, "model.onnx ... ONNX"):
        load_recognizer(other)
    characters = json.loads((other / "characters.json").read_text())
    (other / "model.onnx").write_bytes((exported / "model.onnx").read_bytes())
    (other / "characters.json").write_text(json.dumps([*characters, "x"]))
    with refused(InputError, "log_probs ... 6"):
        load_recognizer(other)


def test_nothing_is_written_if_the_outputs_of_a_program_differ_or_the_folder_has_other_files(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with refused(InputError, "contains ... thesis.txt"):
        export([str(bundle), "-o", str(tmp_path / "mine")])
    difference = agreement.ProgramDifference(0.3, "made audio of 1 s, at 0.40 s", 2, 4)
    with refused(InputError, "model.onnx ... outputs differ"):
        agreement.check("model.onnx", difference)


def test_a_head_without_frame_outputs_is_refused(bundle: Path) -> None:
    model = load_recognizer(bundle).model
    del model.head
    model.head = type("Words", (), {"frame_head": None})()
    with refused(InputError, "CTC ... CTC"):
        program.ctc_net(model)


def test_a_program_that_depends_on_padding_is_detected(exported: Path, bundle: Path) -> None:
    """This program takes the length of the whole batch as that of each utterance."""
    model = onnx.load(exported / "model.onnx")
    for node in model.graph.node:
        node.input[:] = ["all" if name == "feature_lengths" else name for name in node.input]
    shape = [onnx.helper.make_node("Shape", ["features"], ["frames"], start=1, end=2)]
    shape += [onnx.helper.make_node("Mul", ["feature_lengths", "none"], ["nothing"])]
    shape += [onnx.helper.make_node("Add", ["nothing", "frames"], ["all"])]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(1, dtype=np.int64), "none"))
    for node in reversed(shape):
        model.graph.node.insert(0, node)
    expected, actual = load_recognizer(bundle), load_recognizer(exported)
    audio = {f"{seconds} s": sound(round(seconds * 16000)) for seconds in (0.5, 2.5)}
    right, wrong = (
        agreement.difference(expected, actual, content, agreement.OF_FEATURES, audio, program.ctc_net(expected.model))
        for content in ((exported / "model.onnx").read_bytes(), model.SerializeToString())
    )
    agreement.check("model.onnx", right)
    assert wrong.where.startswith("0.5 s")
    assert "in a batch of 2" in wrong.where or "frames, not" in wrong.where
    with refused(InputError, "Nothing was written"):
        agreement.check("model.onnx", wrong)


def test_a_decoder_without_an_export_is_refused(tmp_path: Path) -> None:
    overrides = ["head=ctc_attention", "decode=joint_beam"]
    write_bundle(tmp_path / "bundle", [save(tmp_path / "step=1.ckpt", *overrides, texts=TEXTS)], "card")
    with refused(InputError, "decode=joint_beam ... token_decoder"):
        export([str(tmp_path / "bundle"), "-o", str(tmp_path / "exported")])
    assert not (tmp_path / "exported").exists()


# ---- smaller programs


def norm_and_products(readers: list[str]) -> Any:
    """Make a LayerNorm over eight channels, one of them with a large scale, and the nodes that read its result.

    Each reader is a "product" (a multiplication by weights) or the "output" of the network.
    """
    generator = np.random.default_rng(0)
    scale = np.array([40, 1, 1, 1, 1, 1, 1, 1], dtype=np.float32)
    weights = {"scale": scale, "bias": generator.normal(size=8).astype(np.float32)}
    nodes = [onnx.helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["normed"])]
    outputs = []
    for number, reader in enumerate(readers):
        outputs.append("normed" if reader == "output" else f"y{number}")
        if reader == "product":
            weights[f"w{number}"] = (generator.normal(size=(8, 6)) / scale[:, None]).astype(np.float32)
            nodes.append(onnx.helper.make_node("MatMul", ["normed", f"w{number}"], [f"y{number}"]))
    shaped = {"x": 8, "normed": 8}
    described = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", shaped.get(name, 6)])
        for name in ["x", *outputs]
    ]
    tensors = [onnx.numpy_helper.from_array(values, name) for name, values in weights.items()]
    graph = onnx.helper.make_graph(nodes, "net", described[:1], described[1:], tensors)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


def outcome(net: Any, x: Any) -> Any:
    return np.concatenate(onnxruntime.InferenceSession(net.SerializeToString()).run(None, {"x": x}), axis=1)


def test_channels_are_rescaled_after_a_layer_norm_and_before_rounding_to_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32)
    net = norm_and_products(["product", "product"])
    expected = outcome(net, x)
    np.testing.assert_allclose(outcome(levelled(net), x), expected, rtol=0, atol=1e-4)
    scales = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in levelled(net).graph.initializer}["scale"]
    assert scales.max() / scales.min() < 40 / 4
    onnx.save(net, tmp_path / "net.onnx")
    error = np.square(outcome(to_int8(tmp_path / "net.onnx"), x) - expected).mean()
    monkeypatch.setattr("asr.apps.export.quantization.levelled", lambda net: net)
    assert error < np.square(outcome(to_int8(tmp_path / "net.onnx"), x) - expected).mean() / 9


@pytest.mark.parametrize("readers", [["product", "output"], []])
def test_a_layer_norm_with_other_readers_is_not_changed(readers: list[str]) -> None:
    net = norm_and_products(readers or ["output"])
    assert levelled(net) == net


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_quantised_net_is_smaller_and_has_similar_outputs(exported: Path, bundle: Path, quantization: str) -> None:
    net = onnx.load(exported / "model.onnx")
    smaller = QUANTIZATIONS[quantization](exported / "model.onnx")
    expected, actual = load_recognizer(bundle), load_recognizer(exported)
    audio = {"a sound": sound(40000), "another": sound(16000)}
    content, net_of = smaller.SerializeToString(), program.ctc_net(expected.model)
    difference = agreement.difference(expected, actual, content, agreement.OF_FEATURES, audio, net_of)
    assert 0 < difference.largest < 40, "the logits are a hundred times as large as those of an untrained net"
    assert smaller.ByteSize() < 0.8 * net.ByteSize()
    onnx.checker.check_model(smaller, full_check=True)
    assert "ConvInteger" not in {node.op_type for node in smaller.graph.node}
    assert onnx.load(exported / "model.onnx") == net, "only a copy is changed"


@pytest.mark.slow
@pytest.mark.parametrize(("quantization", "operation"), [("int8", "MatMulInteger"), ("fp16", "Cast")])
def test_figures_before_and_after_quantisation_are_printed_and_stored(
    quantization: str, operation: str, bundle: Path, tones: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / quantization
    arguments = ["--quantize", quantization, "--manifest", str(tones / "test.jsonl")]
    assert export([str(bundle), "-o", str(folder), *arguments]) == 0
    printed, readme = capsys.readouterr().out, (folder / "README.md").read_text(encoding="utf-8")
    for name in ("float32", quantization):
        [row] = [line for line in printed.splitlines() if line.startswith(f"| {name} |")]
        assert re.fullmatch(r"\| \w+ \| [\d.]+ \| [\d,]+ \| [\d.]+ \| [\d.]+ to [\d.]+ \|", row)
        assert row in readme
    assert operation in {node.op_type for node in onnx.load(folder / "model-waveform.onnx").graph.node}
    assert load_recognizer(folder).transcribe([sound(16000)], sample_rate=16_000)


def test_a_manifest_is_only_accepted_for_quantisation(bundle: Path, tones: Path, tmp_path: Path) -> None:
    with refused(InputError, "--manifest ... --quantize"):
        export([str(bundle), "-o", str(tmp_path / "x"), "--manifest", str(tones / "test.jsonl")])


# ---- sherpa-onnx


@pytest.mark.slow
def test_an_export_names_a_program_that_it_leaves_out_and_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tiny_bundle(tmp_path, "features=fbank")
    assert export([str(bundle), "-o", str(tmp_path / "exported")]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "model-sherpa.onnx" in line]
    for setting in ("snip_edges", "high_hertz", "full_scale"):
        assert f"features.{setting}=" in line
    assert line.partition(". ")[2] in (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")


def test_the_program_for_sherpa_onnx_in_the_readme_transcribes_the_recording(
    exported: Path, speech: list[Path], tmp_path: Path
) -> None:
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    text = follow(exported, 1, speech[2], tmp_path)
    assert len(text) > 3
    assert set(text) <= set("".join(TEXTS)) | {" "}


@pytest.mark.parametrize("key", ["vocab_size", "subsampling_factor"])
def test_the_program_has_the_metadata_that_sherpa_onnx_requires(
    exported: Path, speech: list[Path], tmp_path: Path, key: str
) -> None:
    """Without this metadata, sherpa-onnx ends the process."""
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    folder = copied(exported, tmp_path / "incomplete", {})
    model = onnx.load(folder / "model-sherpa.onnx")
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert metadata["normalize_type"] == "per_feature"
    onnx.helper.set_model_props(model, {name: value for name, value in metadata.items() if name != key})
    onnx.save(model, folder / "model-sherpa.onnx")
    with pytest.raises(subprocess.CalledProcessError) as ended:
        follow(folder, 1, speech[0], tmp_path)
    assert key in ended.value.stderr + ended.value.stdout


# ---- the trained model


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model as a bundle, and its export."""
    folder = tmp_path_factory.mktemp("english")
    assert convert([str(MODEL), "-o", str(folder / "bundle")]) == 0
    assert export([str(folder / "bundle"), "-o", str(folder / "exported")]) == 0
    return folder


def texts_by_sherpa(folder: Path, recordings: list[str]) -> list[str]:
    """Recognise recordings in another process, because sherpa-onnx may end its process; return their texts."""
    code = (
        "import sys, sherpa_onnx, soundfile\n"
        "model = sherpa_onnx.OfflineRecognizer.from_nemo_ctc(model='model-sherpa.onnx', tokens='tokens.txt')\n"
        "for recording in sys.argv[1:]:\n"
        "    stream = model.create_stream()\n"
        "    waveform, sample_rate = soundfile.read(recording, dtype='float32')\n"
        "    stream.accept_waveform(sample_rate, waveform)\n"
        "    model.decode_stream(stream)\n"
        "    print(stream.result.text)\n"
    )
    command = [sys.executable, "-c", code, *recordings]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def manifest_of(subset: str, folder: Path) -> list[Utterance]:
    assert prepare(["--corpus-dir", str(SHARED / "LibriSpeech"), "--output-dir", str(folder)]) == 0
    return read_manifest(folder / f"{subset}.jsonl")


@needs_model
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_trained_model_and_sherpa_onnx_recognise_real_speech_like_torch(english: Path, tmp_path: Path) -> None:
    """sherpa-onnx computes its own features, so its texts may differ; its WER may differ by at most 0.3 points."""
    utterances = manifest_of("test-clean-mini", tmp_path)
    before, after = (evaluate(load_recognizer(english / name), name, utterances) for name in ("bundle", "exported"))
    texts = [{scored.utterance.id: scored.transcript.text for scored in result.scored} for result in (before, after)]
    assert texts[0] == texts[1]
    assert after.counts.errors == 48
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    sherpa_texts = texts_by_sherpa(english / "exported", [utterance.audio_filepath for utterance in utterances])
    normalize = get_normalizer("basic")
    counts = [
        count_errors(normalize(utterance.text), normalize(text))
        for utterance, text in zip(utterances, sherpa_texts, strict=True)
    ]
    assert total(counts).rate == pytest.approx(after.counts.rate, abs=0.003)
    recording = Path(utterances[1].audio_filepath)
    assert follow(english / "exported", 0, recording, tmp_path) == texts[0][utterances[1].id]
