"""Streaming transducers exported for sherpa-onnx's OnlineRecognizer: in it, the texts of asr."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx
import onnxruntime

from asr.apps.export import sherpa_zipformer_stream
from asr.apps.export.quantization import to_int8
from asr.apps.export.sherpa_layouts import why_not
from asr.apps.export.sherpa_stream import CACHES, NemoStep, SherpaStep, stream_encoder
from asr.apps.export.sherpa_zipformer_stream import ZipformerStep
from asr.components.tokenizer.char import Char
from asr.convert import main as convert
from asr.core.build import build_features, build_model
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import read_manifest
from asr.core.recognition.model import Model
from asr.core.recognition.streaming import Stream
from asr.export import main as export
from tests import parakeet
from tests.conftest import ROOT, STACKS, TINY, resolved, settings_with, tone_corpus
from tests.test_export_sherpa import amplify_joiner, recordings
from tests.test_icefall import HEADS, checkpoint, subwords, vocabulary
from tests.test_onnx import follow
from tests.tones import sentences, write_corpus

SLANEY, MIRRORED = "features=slaney_fbank", "features=mirrored_fbank"
LSTM = ["head=transducer", "head/predictor=lstm", "head.predictor.num_layers=1", "head.ctc_weight=0"]
CAUSAL = ["encoder=fast_conformer_streaming_s", "features/normalize=none"]
SMALL = ["encoder.dim=16", "encoder.num_layers=2", "encoder.block.num_heads=2", "encoder.subsampling.num_channels=6"]
STATELESS = ["head=transducer", "head/predictor=stateless", "head.predictor.dim=16", "head.ctc_weight=0"]
ZIPFORMER = ["encoder=zipformer_streaming_xs", *(f"encoder.{key}={value}" for key, value in STACKS.items())]
ZIPFORMER += ["encoder.subsampling.channels=[4,8,16]"]
WINDOWS = {  # settings, feature frames of a chunk and of a window
    "causal": ([*CAUSAL, "encoder.chunk_frames=2", "encoder.left_frames=6"], 16, 16),
    "causal, right context": ([*CAUSAL, "encoder.chunk_frames=2", "encoder.right_frames=1"], 16, 17),
    "right context": (
        ["encoder=conformer_streaming_xs", *(f"encoder.{key}_frames=3" for key in ("chunk", "left", "right"))],
        *(12, 24),
    ),
    "zipformer": ([*ZIPFORMER, "features/normalize=none", "encoder.chunk_frames=4", "encoder.left_frames=8"], 16, 29),
}


def streaming_model(*overrides: str) -> tuple[Model, Any]:
    """Return a model with random weights, and its config: a Zipformer as icefall's, or another encoder as NeMo's."""
    zipformer = any("zipformer" in setting for setting in overrides)
    config = resolved(*([MIRRORED, *STATELESS] if zipformer else [*SMALL, SLANEY, *LSTM]), *overrides)
    tokenizer, features = Char(), build_features(config)
    tokenizer.fit(["the quick brown fox"])
    normalize: Any = features.normalize
    if config["features"]["normalize"]["name"] == "global_cmvn":
        normalize.mean, normalize.std = torch.full((80,), -0.5), torch.full((80,), 2.0)
    torch.manual_seed(0)
    model = build_model(config, tokenizer, features)
    return (model if zipformer else parakeet.randomized(model)).eval(), config  # a Zipformer would amplify rounding


@pytest.mark.parametrize("kind", WINDOWS)
@torch.no_grad()
def test_the_windows_of_sherpa_onnx_give_the_output_of_one_pass(kind: str) -> None:
    """Window k begins at frame k * chunk; nothing is before the first one. A stream may join a batch at any time."""
    settings, chunk, size = WINDOWS[kind]
    model, _ = streaming_model(*settings)
    step: SherpaStep = ZipformerStep(model) if kind == "zipformer" else NemoStep(model)
    assert (step.window.chunk, step.window.size) == (chunk, size)
    energies = torch.randn(2, 5 * chunk + size, 80)
    lengths = torch.full((2,), energies.shape[1])
    features, _ = step.normalized(energies, lengths)
    expected = step.joiner_input(model(features, lengths))
    windows = energies.unfold(1, size, chunk).transpose(2, 3)  # (2, 6, size, F)

    def outputs(number: int, rows: list[int], caches: Any) -> Any:
        given = torch.stack([windows[row, number - 2 * row] for row in rows])
        out, *after = step(*step.inputs(given), *caches)
        counts = after[: -len(caches)]  # which a Zipformer's layout does not have
        out = step.arranged(out)
        assert [count.tolist() for count in counts] == ([] if kind == "zipformer" else [[out.shape[1]] * len(out)])
        return out, after[-len(caches) :]

    caches, outs = step.initial_caches(1), []
    for number in range(6):  # the second stream begins two windows later
        if number == 2:
            both = zip(caches, step.initial_caches(1), step.batch_dims, strict=True)
            caches = tuple(torch.cat([first, second], dim) for first, second, dim in both)
        out, caches = outputs(number, [0] if number < 2 else [0, 1], caches)
        outs.append(out)
    first = torch.cat([out[:1] for out in outs], dim=1)
    second = torch.cat([out[1:] for out in outs[2:]], dim=1)
    for row, out in enumerate((first, second)):
        torch.testing.assert_close(out[0], expected[row, : out.shape[1]], rtol=0, atol=1e-4)


def test_the_encoder_has_the_metadata_that_sherpa_onnx_reads() -> None:
    model, _ = streaming_model(*WINDOWS["causal, right context"][0])
    shapes = {CACHES[0]: ["batch", 1, 1, 99], CACHES[1]: ["batch", 1, 1, 1]}
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shapes[name]) for name in shapes]
    program = onnx.helper.make_model(onnx.helper.make_graph([], "net", values, []))
    metadata = {entry.key: entry.value for entry in stream_encoder(program, model).metadata_props}
    sizes = {"window_size": "17", "chunk_shift": "16", "subsampling_factor": "8", "feat_dim": "80"}
    dims = {f"{name}_dim{number}": str(shapes[name][number]) for name in shapes for number in (1, 2, 3)}
    head = {"pred_rnn_layers": "1", "pred_hidden": str(model.head.predictor.initial_state(1).shape[-1])}  # type: ignore[attr-defined]
    vocabulary = {"vocab_size": str(model.tokenizer.vocab_size - 1), "normalize_type": ""}
    assert metadata == {"model_type": "EncDecRNNTBPEModel"} | sizes | dims | head | vocabulary


def test_the_metadata_of_a_zipformer_describe_one_layer_whose_keys_are_the_state() -> None:
    model, _ = streaming_model(*WINDOWS["zipformer"][0])
    shapes = [[*cache.shape] for cache in ZipformerStep(model).initial_caches(1)]
    value = onnx.helper.make_tensor_value_info("key", onnx.TensorProto.FLOAT, shapes[0])
    program = onnx.helper.make_model(onnx.helper.make_graph([], "net", [value], []))
    encoder = sherpa_zipformer_stream.stream_encoder(program, model)
    metadata: Any = {entry.key: entry.value for entry in encoder.metadata_props}
    assert (metadata.pop("model_type"), metadata.pop("T"), metadata.pop("decode_chunk_len")) == (
        "zipformer2",
        "29",
        "16",
    )
    of = {name: int(value) for name, value in metadata.items()}
    assert of["num_encoder_layers"] == 1
    # As OnlineZipformer2TransducerModel::GetEncoderInitStates computes them, for 80 mel bins.
    left, dim, kernel = of["left_context_len"], of["encoder_dims"], of["cnn_module_kernels"] // 2
    key, value_dim = of["query_head_dims"] * of["num_heads"], of["value_head_dims"] * of["num_heads"]
    layer = [[left, 1, key], [1, 1, left, 3 * dim // 4], [left, 1, value_dim], [left, 1, value_dim]]
    assert shapes == [*layer, [1, dim, kernel], [1, dim, kernel], [1, 128, 3, 19], [1]]


def test_a_model_that_sherpa_onnx_cannot_run_as_a_stream_is_left_out_with_the_setting_that_differs() -> None:
    def reason(*overrides: str) -> str:
        model, config = streaming_model(*overrides)
        return why_not(model, config["features"], is_transducer=True)

    for normalize in ("none", "global_cmvn"):
        assert reason(CAUSAL[0], f"features/normalize={normalize}") == ""
    assert "features.sample_rate=8000 instead of 16000" in reason(*CAUSAL, "features.sample_rate=8000")
    assert "features=fbank" not in reason(*CAUSAL, "features.num_mel_bins=128")
    durations = reason(*CAUSAL, "head=tdt", "head.durations=[0,1,2]")
    assert "[0, 1, 2]" in durations
    assert "head=transducer" in durations


def test_a_matrix_for_each_head_is_not_rounded_to_8_bits(tmp_path: Path) -> None:
    """Encoded positions are such matrices if the number of frames is fixed; onnxruntime refuses them as integers."""
    weights = {"heads": np.random.randn(2, 8, 5), "square": np.random.randn(8, 8)}
    nodes = [onnx.helper.make_node("MatMul", ["x", "square"], ["y"], name="first")]
    nodes.append(onnx.helper.make_node("MatMul", ["y", "heads"], ["z"], name="second"))
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 2, 3, 8]), ("z", [1, 2, 3, 5]))
    ]
    tensors = [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    graph = onnx.helper.make_graph(nodes, "net", values[:1], values[1:], tensors)
    net = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(net, tmp_path / "net.onnx")
    x = np.random.randn(1, 2, 3, 8).astype(np.float32)
    quantized = to_int8(tmp_path / "net.onnx")
    assert [node.op_type for node in quantized.graph.node].count("MatMulInteger") == 1
    [out] = onnxruntime.InferenceSession(quantized.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(out, x @ weights["square"] @ weights["heads"], rtol=0, atol=1.0)


# ---- in sherpa-onnx

PIECES = ["tokenizer=sentencepiece", "tokenizer.algorithm=bpe", "tokenizer.vocab_size=14"]
LOOK_AHEADS = ["encoder.chunk_frames=2", "encoder.training_chunk_frames=[2,4]"]
LOOK_AHEADS += ["encoder.left_frames=28", "encoder.training_left_frames=[28]"]
TRAINED = {  # settings, epochs and learning rate
    "causal": ([*CAUSAL, *LOOK_AHEADS, *PIECES], 40, 6e-3),
    "right context": (["encoder=conformer_streaming_xs", "features/normalize=global_cmvn"], 16, 8e-3),
    "as a Zipformer": (
        ["encoder=conformer_streaming_xs", "features/normalize=global_cmvn", *STATELESS, MIRRORED],
        *(16, 8e-3),
    ),
}
BY_SHERPA = """
import os, sys, numpy, sherpa_onnx, soundfile

folder, method, *recordings = sys.argv[1:]
names = {name: f"{folder}/{name}-sherpa.onnx" for name in ("encoder-stream", "decoder", "joiner")}
[tokens] = [name for name in ("tokens-sherpa.txt", "tokens.txt") if os.path.exists(f"{folder}/{name}")][:1]
model = sherpa_onnx.OnlineRecognizer.from_transducer(
    encoder=names.pop("encoder-stream"), **names, tokens=f"{folder}/{tokens}", decoding_method=method
)
streams = [model.create_stream() for _ in recordings]
for stream, recording in zip(streams, recordings):
    waveform, sample_rate = soundfile.read(recording, dtype="float32")
    stream.accept_waveform(sample_rate, numpy.pad(waveform, (0, sample_rate // 2)))
while ready := [stream for stream in streams if model.is_ready(stream)]:
    model.decode_streams(ready)
for stream in streams:
    print(model.get_result(stream))
"""


def by_sherpa(folder: Path, paths: list[str], method: str = "greedy_search") -> list[str]:
    """Return the texts of sherpa-onnx for streams in one batch, which are followed by 0.5 s of silence.

    It runs in a separate process, because its errors crash the process.
    """
    command = [sys.executable, "-c", BY_SHERPA, str(folder), method, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def streamed(run: Path, paths: list[str], silence: float = 0.0) -> list[str]:
    """Return the texts of asr for streams, which are followed by seconds of silence."""
    recognizer, texts = load_recognizer(run), []
    for path in paths:
        stream = Stream(recognizer)
        assert not stream.note, "the stream continues from chunk to chunk"
        waveform, sample_rate = soundfile.read(path, dtype="float32")
        waveform = np.pad(waveform, (0, round(silence * sample_rate)))
        words = [*stream.feed(waveform).final, *stream.finish().final]
        texts.append(" ".join(word.text for word in words))
    return texts


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", TRAINED)
def test_sherpa_onnx_writes_the_texts_of_a_stream_in_float32_and_int8(kind: str, tmp_path: Path) -> None:
    from asr.train import train

    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    settings, epochs, rate = TRAINED[kind]
    write_corpus(tmp_path, {"train": sentences(128, 1), "valid": sentences(8, 2), "test": sentences(20, 3)})
    enough = [f"trainer.max_epochs={epochs}", f"trainer.check_val_every_n_epoch={epochs}", f"optimizer.lr={rate}"]
    sizes = ["head.predictor.dim=32", "head.joint_dim=64"]
    made = [] if MIRRORED in settings else [SLANEY, *LSTM[:-1]]
    run = tmp_path / "run"
    train(settings_with(*TINY, *made, *settings, *sizes, *tone_corpus(tmp_path), f"run_dir={run}", *enough))
    utterances = read_manifest(tmp_path / "test.jsonl")
    paths = [str(utterance.audio_filepath) for utterance in utterances]
    expected = streamed(run, paths)
    assert sum(text == utterance.text for text, utterance in zip(expected, utterances, strict=True)) > 15
    for name, options in (("stream-onnx", []), ("int8", ["--quantize", "int8"])):
        assert export([str(run), "-o", str(tmp_path / name), *options]) == 0
        assert by_sherpa(tmp_path / name, paths) == expected
    assert follow(tmp_path / "stream-onnx", 1, Path(paths[0]), tmp_path) == expected[0]
    encoder = "encoder-stream-sherpa.onnx"
    sizes_in_bytes = [(tmp_path / name / encoder).stat().st_size for name in ("int8", "stream-onnx")]
    assert sizes_in_bytes[0] < 0.7 * sizes_in_bytes[1]
    if PIECES[0] in settings:
        assert by_sherpa(tmp_path / "stream-onnx", paths, "modified_beam_search") == expected
        assert hotword_texts(tmp_path, paths, "bed") != expected


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sherpa_onnx_writes_the_texts_of_a_stream_of_icefalls_zipformer(tmp_path: Path) -> None:
    """The weights are random, so that the model also writes words in the silence after the last window."""
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    theirs, bundle, exported = tmp_path / "theirs", tmp_path / "bundle", tmp_path / "exported"
    theirs.mkdir()
    (theirs / "bpe.model").write_bytes(subwords())
    tensors = checkpoint(vocabulary().vocab_size(), HEADS["transducer"], causal=True)
    torch.save({"model": tensors}, theirs / "pretrained.pt")
    assert convert([str(theirs), "-o", str(bundle)]) == 0
    amplify_joiner(bundle)
    paths = recordings(tmp_path)
    longer = streamed(bundle, paths, silence=0.5)
    assert export([str(bundle), "-o", str(exported)]) == 0
    texts = by_sherpa(exported, paths)
    assert len({*texts}) == len(paths)
    assert all(texts)
    for text, all_words in zip(texts, longer, strict=True):
        assert " ".join(all_words.split()).startswith(" ".join(text.split()))


def hotword_texts(folder: Path, paths: list[str], hotword: str) -> list[str]:
    """Return the texts of the program with hotwords in the guide."""
    programs = (ROOT / "docs" / "guide" / "export.md").read_text().split("```python\n")[1:]
    [program] = [each.split("```")[0] for each in programs if "OnlineRecognizer" in each]
    (folder / "names.txt").write_text(f"{hotword}\n")
    texts = []
    for path in paths:
        waveform, sample_rate = soundfile.read(path)
        soundfile.write(folder / "recording.wav", waveform, sample_rate)
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
        texts.append(done.stdout.strip())
    return texts
