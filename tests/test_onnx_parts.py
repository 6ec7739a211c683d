"""Exported models that consist of several programs: the parts of a transducer, and the step of a stream."""

import json
import re
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from torch import Tensor
from torch.export import Dim
from torch.export import export as export_program

from tests.refusals import refused

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx

from asr import Stream
from asr.apps.export import agreement, stream_step, transducer_programs
from asr.apps.export.program_weights import write
from asr.apps.export.programs import running
from asr.apps.export.quantization import QUANTIZATIONS, smaller
from asr.base.onnx.names import JOINER_NAMES, PREDICTOR_NAMES
from asr.base.onnx.session import run, session
from asr.components.features.normalize.global_cmvn import FILE as STATISTICS
from asr.components.program import transducer
from asr.core.build import component, exported
from asr.core.checkpoint.bundle import read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer, write_bundle
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.export import main as export
from tests.conftest import CONF, block_dims, resolved
from tests.test_average import save
from tests.test_onnx import TEXTS, follow, walk
from tests.test_streaming import final_text, pieces

PREDICTORS = sorted(path.stem for path in (CONF / "head" / "predictor").glob("*.yaml"))
LENGTHS = (40000, 16000, 55555)  # samples


def speech_like(num_samples: int) -> Tensor:
    """Return noise that swells twice a second, as speech does, with a pause; `may_hold_speech` accepts it."""
    time = torch.arange(num_samples) / 16000
    waveform = 0.1 * (12 * time).sin().clamp(min=0) * torch.randn(num_samples)
    waveform[num_samples // 2 : num_samples // 2 + 2000] = 0.0
    return waveform


def weight_bytes(program: Any) -> int:
    """Return the bytes of the weights of an ONNX program, without its graph."""
    return sum(len(weight.raw_data) for weight in program.graph.initializer)


def talkative(bundle: Path, layer: str, factor: float) -> None:
    """Scale a layer of the head so that its outputs vary greatly from frame to frame."""
    contents, model = read_bundle(bundle), load_recognizer(bundle).model
    [linear] = [
        name.removesuffix(".weight")
        for name in contents.weights
        if name.startswith("head.") and name.endswith(f"{layer}.weight")
    ]
    with torch.no_grad():
        average = model(model.features(speech_like(48000))[None], torch.tensor([298])).out[0].mean(dim=0)
    contents.weights[f"{linear}.weight"] *= factor
    contents.weights[f"{linear}.bias"][:] = -contents.weights[f"{linear}.weight"] @ average
    if layer == "of_frames":
        contents.weights["head.joiner.of_tokens.weight"] *= factor
        contents.weights["head.joiner.output.weight"] *= 5
        contents.weights["head.joiner.output.bias"][0] += 4  # the blank must end the tokens of a frame
    replace_bundle(bundle, contents)


def recordings(folder: Path) -> list[Path]:
    torch.manual_seed(0)
    paths = [folder / f"{number}.wav" for number in LENGTHS]
    for path, number in zip(paths, LENGTHS, strict=True):
        soundfile.write(path, speech_like(number).numpy(), 16000, subtype="FLOAT")
    return paths


def waveforms(folder: Path) -> list[Tensor]:
    return [torch.from_numpy(soundfile.read(path, dtype="float32")[0]) for path in recordings(folder)]


def inputs_of(path: Path) -> dict[str, list[Any]]:
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 18)]
    return {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in model.graph.input
    }


def assert_the_same(before: Recognizer, after: Recognizer, sounds: list[Tensor]) -> None:
    """Compare words, times and confidences."""
    transcripts = (recognizer.transcribe(sounds, sample_rate=16_000) for recognizer in (before, after))
    for expected, actual in zip(*transcripts, strict=True):
        assert expected.text
        assert [(word.text, word.start, word.end) for word in actual.words] == [
            (word.text, word.start, word.end) for word in expected.words
        ]
        for word, other in zip(expected.words, actual.words, strict=True):
            assert other.confidence == pytest.approx(word.confidence, abs=1e-3)


# ---- a transducer


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # torch's warning about a GRU's weights
@pytest.mark.parametrize("predictor", PREDICTORS)
@torch.no_grad()
def test_a_step_of_the_prediction_network_is_exported_for_any_batch(predictor: str) -> None:
    overrides = [f"head/predictor={predictor}", "head.predictor.dim=8"]
    if not predictor.startswith("stateless"):
        overrides.append("head.predictor.num_layers=2")
    network = component("head", resolved("head=transducer", *overrides)["head"])(8, block_dims(8), 5).eval().predictor

    class Step(torch.nn.Module):
        def forward(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            out: tuple[Tensor, Tensor] = network.step(tokens, state)
            return out

    example = (torch.tensor([1, 2]), network.initial_state(2))
    step = Step()
    step.network = network
    program = export_program(step, example, dynamic_shapes=({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})).module()
    for batch in (1, 3):
        expected = actual = network.initial_state(batch)
        for _ in range(3):
            tokens = torch.randint(5, (batch,))
            (out, expected), (ours, actual) = network.step(tokens, expected), program(tokens, actual)
            torch.testing.assert_close(ours, out, rtol=0, atol=1e-6)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def transducer_bundle(folder: Path, predictor: str) -> Path:
    small = ["head.predictor.dim=16", "head.joint_dim=24"]
    overrides = ["head=transducer", f"head/predictor={predictor}", *small]
    write_bundle(folder / "bundle", [save(folder / "step=1.ckpt", *overrides, texts=TEXTS, weights=1)], "# tiny\n")
    talkative(folder / "bundle", "of_frames", 30)
    return folder / "bundle"


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.slow)])
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a transducer's bundle and its export."""
    folder = tmp_path_factory.mktemp("transducer")
    assert export([str(transducer_bundle(folder, "gru")), "-o", str(folder / "exported")]) == 0
    return folder


def test_a_transducer_is_exported_as_three_programs_and_one_for_waveforms(spoken: Path) -> None:
    programs = {path.name: inputs_of(path) for path in (spoken / "exported").glob("*.onnx")}
    assert programs == {
        "encoder.onnx": {"features": ["batch", "frames", 80], "feature_lengths": ["batch"]},
        "encoder-waveform.onnx": {"waveforms": ["batch", "samples"], "sample_counts": ["batch"]},
        "predictor.onnx": {"tokens": ["batch"], "state": ["batch", 1, 16]},
        "joiner.onnx": {"encoder_out": ["batch", 24], "predictor_out": ["batch", 24]},
    }


@pytest.mark.parametrize("decode", ["transducer_greedy", "transducer_beam", "greedy"])
def test_an_exported_transducer_gives_the_transcripts_of_the_model_with_each_decoder(
    spoken: Path, decode: str, tmp_path: Path
) -> None:
    """The encoder's program includes the CTC head, which gives the times."""
    before, after = (load_recognizer(spoken / name, decode={"name": decode}) for name in ("bundle", "exported"))
    assert_the_same(before, after, waveforms(tmp_path))


def test_the_loop_for_transducers_in_the_readme_needs_no_torch_and_gives_the_same_text(
    spoken: Path, tmp_path: Path
) -> None:
    for recording in recordings(tmp_path):
        [expected] = load_recognizer(spoken / "bundle").transcribe([recording], sample_rate=16_000)
        assert len(expected.text) > 1
        assert follow(spoken / "exported", 0, recording, tmp_path) == expected.text


@pytest.mark.slow
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_a_head_made_of_programs_gives_the_outputs_of_its_model_and_refuses_other_models(
    tmp_path: Path, predictor: str
) -> None:
    model = load_recognizer(transducer_bundle(tmp_path, predictor)).model
    programs = {name: program.SerializeToString() for name, program in transducer_programs.export_head(model).items()}
    parts = (
        transducer.OnnxPredictor(session(programs["predictor.onnx"], *PREDICTOR_NAMES)),
        transducer.OnnxJoiner(session(programs["joiner.onnx"], *JOINER_NAMES)),
    )
    actual = type("Exported", (), {"head": transducer.OnnxTransducer(*parts, (), None)})()
    difference = transducer_programs.difference(model, actual)
    assert difference.largest < 1e-4
    tokens = torch.tensor([[1, 2, 1], [2, 2, 1]])
    with torch.no_grad():
        expected = model.head.joiner.of_tokens(model.head.predictor(tokens))  # type: ignore[union-attr, operator]
    torch.testing.assert_close(actual.head.predictor(tokens), expected, rtol=0, atol=1e-4)
    with torch.no_grad():
        model.head.joiner.output.bias[1] += 1.0  # type: ignore[union-attr, operator, index]
    with refused(InputError, "outputs differ"):
        agreement.check("joiner.onnx", transducer_programs.difference(model, actual))


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_a_quantised_transducer_is_smaller_in_all_parts_and_runs(
    quantization: str, spoken: Path, tmp_path: Path
) -> None:
    parts = {name: onnx.load(spoken / "exported" / name) for name in ("encoder.onnx", "predictor.onnx", "joiner.onnx")}
    made = smaller(parts, {name: spoken / "exported" / name for name in parts}, quantization, tmp_path)
    files = write(made, tmp_path)
    made = {name: onnx.load(files[name]) for name in made}
    for name, part in made.items():
        onnx.checker.check_model(part, full_check=True)
        ratio = weight_bytes(part) / weight_bytes(parts[name])
        assert ratio < (0.6 if quantization == "fp16" else 0.9), name  # int8: only of MatMul and Gemm
    config = read_bundle(spoken / "bundle").config
    recognizer = running(load_recognizer(spoken / "bundle"), config, files)
    assert all(transcript.text for transcript in recognizer.transcribe(waveforms(tmp_path), sample_rate=16_000))


def test_a_step_of_an_encoder_that_does_not_stream_is_refused_in_one_line(
    streaming_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_recognizer(streaming_folder / "bundle").model
    monkeypatch.setattr(type(model.encoder), "streaming", None)
    with refused(InputError, "step.onnx; got ConformerStreaming"):
        exported(model, {name: streaming_folder / "exported" / name for name in ("model.onnx", "step.onnx")})


def test_a_folder_that_lacks_a_part_is_refused_in_one_line(spoken: Path, tmp_path: Path) -> None:
    for file in (spoken / "exported").iterdir():
        if file.name != "joiner.onnx":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with refused(InputError, "model ... joiner.onnx"):
        load_recognizer(tmp_path)


# ---- a stream

CHUNK, LEFT, RIGHT = 8, 12, 5


@pytest.fixture(scope="module", params=[pytest.param("", marks=pytest.mark.slow)])
def streaming_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle of a streaming model, and its export."""
    folder = tmp_path_factory.mktemp("stream")
    overrides = ["encoder=conformer_streaming_xs", f"encoder.chunk_frames={CHUNK}", f"encoder.left_frames={LEFT}"]
    overrides += [f"encoder.right_frames={RIGHT}"]
    overrides += ["features/normalize=global_cmvn", "features=slaney_fbank", "features.pad_mode=reflect"]
    overrides += ["head=ctc_self_conditioned", "head.num_intermediate=1"]
    write_bundle(folder / "bundle", [save(folder / "step=1.ckpt", *overrides, texts=TEXTS, weights=1)], "# tiny\n")
    statistics = {"mean": [-4.0] * 80, "std": [3.0] * 80}
    (folder / "bundle" / STATISTICS).write_text(json.dumps(statistics))
    talkative(folder / "bundle", "linear", 100)
    assert export([str(folder / "bundle"), "-o", str(folder / "exported")]) == 0
    return folder


def test_a_step_has_the_states_as_named_inputs_and_outputs(streaming_folder: Path) -> None:
    assert {path.name for path in (streaming_folder / "exported").glob("*.onnx")} == {
        *("model.onnx", "model-waveform.onnx", "features.onnx", "step.onnx")
    }
    state = load_recognizer(streaming_folder / "bundle").model.encoder.initial_state(1)  # type: ignore[attr-defined]
    inputs = inputs_of(streaming_folder / "exported" / "step.onnx")
    assert list(inputs) == ["features", "feature_lengths", *state]
    assert {name: inputs[name] for name in state} == {name: ["batch", *rows.shape[1:]] for name, rows in state.items()}
    outputs = onnx.load(streaming_folder / "exported" / "step.onnx").graph.output
    assert [value.name for value in outputs] == ["log_probs", "log_probs_lengths", *(f"next.{name}" for name in state)]
    for value in outputs[2:]:
        shape = [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        assert shape == inputs[value.name.removeprefix("next.")]


@torch.no_grad()
def test_chunks_of_any_size_and_any_number_of_streams_give_the_output_of_torch(streaming_folder: Path) -> None:
    before, after = (load_recognizer(streaming_folder / name).model for name in ("bundle", "exported"))
    for batch, sizes in ((1, [32, 32, 32, 7]), (3, [32, 64, 32, 13]), (2, [4, 4, 100, 1])):
        states = [model.encoder.initial_state(batch) for model in (before, after)]  # type: ignore[attr-defined]
        for size, to_come in zip(sizes, [4 * RIGHT] * 3 + [0], strict=False):
            features, lengths = torch.randn(batch, size + 4 * RIGHT, 80), torch.full((batch,), size + to_come)
            encoded, states[0] = before.encoder.step(features, lengths, states[0], before.head.taps)  # type: ignore[attr-defined]
            given, states[1] = after.encoder.step(features, lengths, states[1])  # type: ignore[attr-defined]
            expected = before.head.frame_head.log_probs(encoded.out)  # type: ignore[union-attr]
            # The fixture scales the logits by 100, and thereby their rounding errors.
            torch.testing.assert_close(given.out, expected, rtol=0, atol=1e-4 * 30)
            assert torch.equal(given.lengths, encoded.lengths)
            assert list(states[1]) == list(states[0])
            for name, rows in states[0].items():
                torch.testing.assert_close(states[1][name], rows, rtol=0, atol=1e-4)


def test_an_exported_stream_gives_the_same_words_with_the_same_times(streaming_folder: Path, tmp_path: Path) -> None:
    for number, waveform in enumerate(waveforms(tmp_path)):
        streams = [Stream(load_recognizer(streaming_folder / name)) for name in ("bundle", "exported")]
        assert not any(each.note for each in streams), "both continue from chunk to chunk"
        texts_by = [[*(each.feed(piece) for piece in pieces(waveform, number)), each.finish()] for each in streams]
        assert len(final_text(texts_by[0])) > 4
        for expected, actual in zip_longest(*texts_by):
            assert [(word.text, word.start) for word in [*actual.final, *actual.partial]] == [
                (word.text, word.start) for word in [*expected.final, *expected.partial]
            ]


def test_the_programs_in_the_readme_of_a_streaming_model_need_no_torch_and_give_its_text(
    streaming_folder: Path, tmp_path: Path
) -> None:
    for recording in recordings(tmp_path):
        [expected] = load_recognizer(streaming_folder / "bundle").transcribe([recording], sample_rate=16_000)
        for number in range(2):  # program 0 of the README reads a whole recording, program 1 a stream
            assert follow(streaming_folder / "exported", number, recording, tmp_path).split() == expected.text.split()


def test_the_instructions_in_the_readme_give_the_text_of_a_stream(streaming_folder: Path, tmp_path: Path) -> None:
    recording = recordings(tmp_path)[0]
    [expected] = load_recognizer(streaming_folder / "bundle").transcribe([recording], sample_rate=16_000)
    assert [text.split() for text in walk(streaming_folder / "exported", recording, tmp_path)] == [
        expected.text.split()
    ] * 2


def test_a_stream_of_an_exported_model_refuses_another_context(streaming_folder: Path) -> None:
    with refused(InputError, f"left_seconds ... {LEFT}", got=100):
        Stream(load_recognizer(streaming_folder / "exported"), left_seconds=4.0)
    with refused(InputError, f"right_seconds ... {RIGHT}", got=25):
        Stream(load_recognizer(streaming_folder / "exported"), right_seconds=1.0)


def test_a_step_that_ignores_its_state_is_detected(streaming_folder: Path) -> None:
    """The convolutions of this program do not see the previous chunk."""
    expected, actual = (load_recognizer(streaming_folder / name) for name in ("bundle", "exported"))
    audio = {"a sound": speech_like(40000)}
    agreement.check("step.onnx", stream_step.difference(expected, actual, audio))
    step = actual.model.encoder.step  # type: ignore[attr-defined]

    def forgetful(features: Tensor, lengths: Tensor, state: dict[str, Tensor], *taps: object) -> Any:
        gone = {name: torch.zeros_like(rows) for name, rows in state.items() if name.endswith(".frames")}
        return step(features, lengths, state | gone)

    actual.model.encoder.step = forgetful  # type: ignore[attr-defined]
    difference = stream_step.difference(expected, actual, audio)
    assert re.fullmatch(r"a sound, as a stream, at \d\.\d\d s", difference.where)
    with refused(InputError, "step.onnx ... compute"):
        agreement.check("step.onnx", difference)


# ---- untrusted programs


def program_of(*nodes: onnx.NodeProto) -> bytes:
    """Return a program that adds `x`, an output of the nodes, to the features."""
    last = [
        onnx.helper.make_node("Add", ["features", "x"], ["log_probs"]),
        onnx.helper.make_node("Identity", ["lengths"], ["out_lengths"]),
    ]
    floats, wholes = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    value = onnx.helper.make_tensor_value_info
    inputs = [value("features", floats, ["batch", "t", 80]), value("lengths", wholes, ["batch"])]
    outputs = [value("log_probs", floats, None), value("out_lengths", wholes, None)]
    graph = onnx.helper.make_graph([*nodes, *last], "stranger", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def constant(name: str, kind: int, shape: list[int], values: list[Any]) -> onnx.NodeProto:
    return onnx.helper.make_node("Constant", [], [name], value=onnx.helper.make_tensor(name, kind, shape, values))


def endless() -> bytes:
    """Return a program with a loop whose condition is always true."""
    floats, truths = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL
    value = onnx.helper.make_tensor_value_info
    body = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["go"], ["still"]), onnx.helper.make_node("Add", ["y", "one"], ["more"])],
        "body",
        [value("number", onnx.TensorProto.INT64, []), value("go", truths, []), value("y", floats, [])],
        [value("still", truths, []), value("more", floats, [])],
    )
    loop = onnx.helper.make_node("Loop", ["", "true", "one"], ["x"], body=body)
    return program_of(constant("one", floats, [], [1.0]), constant("true", truths, [], [True]), loop)


def greedy_for_memory() -> bytes:
    """Return a program with a tensor of 160 GB."""
    return program_of(
        constant("shape", onnx.TensorProto.INT64, [1], [40_000_000_000]),
        onnx.helper.make_node("ConstantOfShape", ["shape"], ["much"]),
        onnx.helper.make_node("ReduceSum", ["much"], ["x"], keepdims=0),
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [(endless, "was stopped after"), (greedy_for_memory, "memory ... 160000000000")],
)
def test_a_program_that_never_ends_or_needs_too_much_memory_is_refused_in_one_line(
    make: Callable[[], bytes], message: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("asr.base.onnx.session.MIN_TIMEOUT_SECONDS", 1.0)
    opened = session(make(), ("features", "lengths"), ("log_probs", "out_lengths"))
    with refused(InputError, f"exported program ... {message}"):
        run(opened, torch.zeros(1, 10, 80), torch.tensor([10]))
    assert capfd.readouterr() == ("", "")
