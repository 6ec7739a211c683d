"""The causal encoder equals that of NemotronAsrStreaming, in one pass and as a stream; its models convert both ways."""

import json
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import soundfile
import torch
import yaml
from torch import Tensor, nn
from transformers import AutoProcessor, DynamicCache, NemotronAsrStreamingForRNNT
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import (
    NemotronAsrStreamingEncoder,
    NemotronAsrStreamingEncoderCausalConvPaddingCache,
)

from asr import Stream
from asr.apps.convert.account import Counterparts, take
from asr.apps.convert.huggingface.config import encoder_config, scale
from asr.apps.convert.huggingface.parakeet import CAUSAL_STAGES, names
from asr.apps.convert.nemo.convert import from_nemo
from asr.base.kernels.positions import sinusoids
from asr.components.encoder.conformer_streaming import ConformerStreaming
from asr.convert import main
from asr.core.build import component
from asr.core.checkpoint.bundle import read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.latency import set_latency
from asr.errors import InputError
from asr.evaluate import main as evaluate
from asr.export import main as export
from asr.transcribe import main as transcribe
from asr.tune import main as tune
from tests import nemotron
from tests.nemo import CAUSAL, CHANNELS, DIM, LEFT, LOOK_AHEADS, MELS, NA_FEATURES, nemo_files, write_tar
from tests.nemo import member as tar_member
from tests.parakeet import SAMPLE_RATE, change
from tests.refusals import refused
from tests.test_conformer_streaming import make, stream
from tests.test_convert import assert_equal, assert_refused
from tests.test_nemo_transducers import HIDDEN, JOINT, PUBLISHED, config, state
from tests.test_onnx import follow
from tests.test_parakeet import bundle, sound

LENGTHS = [*range(15, 25), 1, 2, 8, 9, 100]  # feature frames: 8 k - 1 .. 8 k + 8, and others
EACH_LOOK_AHEAD = pytest.mark.parametrize("look_ahead", LOOK_AHEADS)
WAVEFORMS = [sound(3.0), sound(1.2, seed=1), sound(2.1, seed=2)]


class Positions(nn.Module):
    """asr's positional encodings, to replace those of transformers; both are float32, but rounded differently."""

    def forward(self, x: Tensor, cached_frames: int | None = None) -> Tensor:
        length = x.shape[1] + (cached_frames or 0)
        distances = torch.arange(length - 1, -length, -1)
        return sinusoids(distances, x.shape[2]).to(x.dtype).expand(len(x), -1, -1)


def encoders(look_ahead: int) -> tuple[ConformerStreaming, NemotronAsrStreamingEncoder]:
    """Return our encoder and that of transformers in float64, with equal random weights."""
    theirs = nemotron.encoder(default_num_lookahead_tokens=look_ahead)
    settings = {"model_type": "nemotron_asr_streaming", "encoder_config": theirs.config.to_diff_dict()}
    processor = {"supported_num_lookahead_tokens": LOOK_AHEADS}
    ours = component("encoder", encoder_config(settings, processor))(nemotron.ENCODER["num_mel_bins"])
    shapes = {f"encoder.{name}": tensor.shape for name, tensor in ours.state_dict().items()}
    tensors = {f"encoder.{name}": tensor for name, tensor in theirs.state_dict().items()}
    named = names(0)._replace(outside={**names(0).outside, **CAUSAL_STAGES}, scale=scale(settings))
    weights, _ = take(tensors, shapes, Counterparts(named.row))
    ours.load_state_dict({name.removeprefix("encoder."): weight for name, weight in weights.items()})
    theirs.double().encode_positions = Positions()
    return ours.double().eval(), theirs


@EACH_LOOK_AHEAD
@torch.no_grad()
def test_one_pass_over_a_batch_equals_that_of_transformers(look_ahead: int) -> None:
    ours, theirs = encoders(look_ahead)
    features = torch.randn(len(LENGTHS), max(LENGTHS) + 3, 24, dtype=torch.float64)
    padding = torch.arange(features.shape[1]) >= torch.tensor(LENGTHS)[:, None]
    expected = theirs(features.masked_fill(padding[:, :, None], 0.0), ~padding, num_lookahead_tokens=look_ahead)
    out, lengths, *_ = ours(features.masked_fill(padding[:, :, None], math.nan), torch.tensor(LENGTHS))
    assert lengths.tolist() == expected.attention_mask.sum(dim=1).tolist() == list(map(ours.output_lengths, LENGTHS))
    assert lengths.tolist()[:4] == [3, 3, 3, 4]
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(out[row, :length], expected.last_hidden_state[row, :length], rtol=0, atol=1e-9)


def test_an_utterance_without_frames_has_no_encoder_frames() -> None:
    ours, _ = encoders(0)
    assert ours.output_lengths(0) == 0
    assert ours.output_lengths(torch.tensor([0, 1, 2])).tolist() == [0, 1, 2]
    assert ours(torch.zeros(2, 5, 24).double(), torch.tensor([0, 5])).lengths.tolist() == [0, 2]


@EACH_LOOK_AHEAD
@torch.no_grad()
def test_a_stream_of_any_length_equals_one_pass(look_ahead: int) -> None:
    ours, _ = encoders(look_ahead)
    for frames in [*range(1, 60), 200, 337]:
        features = torch.randn(frames, 24, dtype=torch.float64)
        expected = ours(features[None], torch.tensor([frames])).out[0]
        torch.testing.assert_close(stream(ours, features, look_ahead + 1)[0], expected, rtol=0, atol=1e-10)


@EACH_LOOK_AHEAD
@torch.no_grad()
def test_a_stream_of_whole_chunks_equals_the_cache_of_transformers(look_ahead: int) -> None:
    """The cache of transformers does not support a shorter last chunk."""
    ours, theirs = encoders(look_ahead)
    size, num_chunks = 8 * (look_ahead + 1), 7
    features = torch.randn(1, 1 + 8 * look_ahead + (num_chunks - 1) * size, 24, dtype=torch.float64)
    cache, padding_cache = DynamicCache(config=theirs.config), NemotronAsrStreamingEncoderCausalConvPaddingCache()
    outs = []
    for chunk in [features[:, : 1 + 8 * look_ahead], *features[:, 1 + 8 * look_ahead :].split(size, dim=1)]:
        options = {"use_cache": True, "cache": cache, "padding_cache": padding_cache}
        outs.append(theirs(chunk, num_lookahead_tokens=look_ahead, **options).last_hidden_state[0])
    torch.testing.assert_close(stream(ours, features[0], look_ahead + 1)[0], torch.cat(outs), rtol=0, atol=1e-9)


def test_a_training_batch_draws_one_of_the_trained_look_aheads() -> None:
    ours, theirs = encoders(LOOK_AHEADS[0])
    features, lengths = torch.randn(1, 200, 24, dtype=torch.float64), torch.tensor([200])
    ours.train()
    for module in (*ours.modules(), *theirs.modules()):
        module.p = 0.0  # no dropout
    drawn = set()
    for seed in range(20):
        torch.manual_seed(seed)
        out = ours(features, lengths).out
        equal = [
            look_ahead
            for look_ahead in LOOK_AHEADS
            if torch.allclose(theirs(features, num_lookahead_tokens=look_ahead).last_hidden_state, out, atol=1e-9)
        ]
        assert len(equal) == 1
        drawn.add(equal[0])
    assert drawn == set(LOOK_AHEADS)


# ---- conversion from and to transformers


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model (`theirs`), its bundle (`ours`), and the folder converted back (`back`)."""
    folder = tmp_path_factory.mktemp("nemotron")
    nemotron.save(folder / "theirs")
    assert main([str(folder / "theirs"), "-o", str(folder / "ours")]) == 0
    assert main([str(folder / "ours"), "--to", "huggingface", "-o", str(folder / "back")]) == 0
    return folder


def theirs_of(folder: Path) -> tuple[Any, Any]:
    """Return the model in float64 and the processor that transformers loads from a folder."""
    model = NemotronAsrStreamingForRNNT.from_pretrained(folder, attn_implementation="sdpa").double().eval()
    return model, AutoProcessor.from_pretrained(folder)


def test_features_equal_those_of_transformers(converted: Path) -> None:
    _, processor = theirs_of(converted / "theirs")
    features = load_recognizer(converted / "ours").model.features
    for waveform in WAVEFORMS:
        inputs = processor.feature_extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
        expected = inputs["input_features"][0][inputs["attention_mask"][0].bool()]
        torch.testing.assert_close(features(waveform), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", ["theirs", "back"])
def test_greedy_texts_equal_those_of_transformers_generate(name: str, converted: Path) -> None:
    model, processor = theirs_of(converted / name)
    transcripts = load_recognizer(converted / "ours").transcribe(WAVEFORMS, sample_rate=SAMPLE_RATE)
    for waveform, transcript in zip(WAVEFORMS, transcripts, strict=True):
        inputs = processor.feature_extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
        inputs["input_features"] = inputs["input_features"].double()
        inputs["num_lookahead_tokens"] = LOOK_AHEADS[0]
        sequence = model.generate(**inputs).sequences[0].tolist()
        ids = [token for token in sequence if token != model.config.blank_token_id]
        assert transcript.text == " ".join(processor.tokenizer.decode(ids, group_tokens=False).split())
        assert len(transcript.text) > 4


def test_converting_back_keeps_tensors_and_look_aheads_and_a_second_time_gives_the_same_files(
    converted: Path, tmp_path: Path
) -> None:
    theirs, back = (safetensors.torch.load_file(converted / name / "model.safetensors") for name in ("theirs", "back"))
    folded = ("encoder.subsampling.linear", "encoder_projector.bias", "decoder.decoder_projector.bias")
    assert theirs.keys() == back.keys()
    for name in theirs:
        assert name.startswith(folded) or torch.equal(theirs[name], back[name]), name
    processors = [json.loads((converted / name / "processor_config.json").read_text()) for name in ("theirs", "back")]
    for key in ("supported_num_lookahead_tokens", "default_num_lookahead_tokens", "blank_token", "processor_class"):
        assert processors[0][key] == processors[1][key]
    assert main([str(converted / "back"), "-o", str(tmp_path / "ours")]) == 0
    assert main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "back")]) == 0
    for path in (converted / "back").iterdir():
        if path.name != "README.md":
            assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_config__sliding_window": 12}, "encoder_config ... multiple of look-ahead + 1; got 11"),
        ({"encoder_config__sliding_window": 0}, "sliding_window"),
        ({"encoder_config__default_num_lookahead_tokens": -1}, "supported_num_lookahead_tokens"),
        ({"durations": [0, 1]}, "durations"),
        ({"model_type": "nemotron3_5_asr"}, "prompt_dictionary"),
        ({"model_type": "nemotron4_asr"}, "model_type ... nemotron3_5_asr"),
    ],
)
def test_an_unsupported_setting_of_transformers_is_refused_in_one_line(
    changes: dict[str, Any], message: str, converted: Path, tmp_path: Path
) -> None:
    change(nemotron.save(tmp_path / "theirs") / "config.json", **changes)
    assert_refused(tmp_path / "theirs", message, tmp_path)


# ---- streams of a converted model


@pytest.mark.parametrize("look_ahead", [0, 3])
def test_the_text_of_a_stream_equals_that_of_the_whole_recording(look_ahead: int, converted: Path) -> None:
    recognizer = load_recognizer(converted / "ours")
    recognizer.model.encoder.chunk_frames = look_ahead + 1  # type: ignore[attr-defined]
    for seed, samples in enumerate((16_000, 9_601, 641, 640, 1)):
        waveform = sound(2.0, seed)[:samples]
        [expected] = recognizer.transcribe([waveform], sample_rate=SAMPLE_RATE)
        reader = Stream(recognizer, endpoint_seconds=None, settled_seconds=None)
        assert not reader.note
        captions = [*map(reader.feed, waveform.split(1_000)), reader.finish()]
        assert " ".join(word.text for each in captions for word in each.final) == expected.text


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "sound.wav", sound(2.0).numpy(), SAMPLE_RATE)
    return tmp_path / "sound.wav"


@pytest.mark.parametrize("options", [[], ["--stream"]], ids=["whole recording", "stream"])
def test_the_latency_chooses_one_of_the_models_look_aheads(
    options: list[str], converted: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = []
    for look_ahead in LOOK_AHEADS:
        recognizer = load_recognizer(converted / "ours")
        recognizer.model.encoder.chunk_frames = look_ahead + 1  # type: ignore[attr-defined]
        [expected] = recognizer.transcribe([str(recording)])
        arguments = [str(converted / "ours"), str(recording), *options, "--latency", f"{0.08 * (look_ahead + 1):g}"]
        capsys.readouterr()
        assert transcribe(arguments) == 0
        texts.append(capsys.readouterr().out.strip().rpartition("\t")[2])
        assert texts[-1].split()[-3:] == expected.text.split()[-3:]
    assert len(set(texts)) > 1


@pytest.mark.parametrize("command", [transcribe, evaluate, tune])
def test_another_latency_is_refused_with_the_list(command: Any, converted: Path, recording: Path) -> None:
    manifest = recording.with_suffix(".jsonl")
    manifest.write_text(json.dumps({"audio_filepath": str(recording), "duration": 2.0, "text": "the fox"}) + "\n")
    with refused(InputError, "--latency ... 0.32, 0.08, 0.16 or 0.48 seconds; got 0.24"):
        command([str(converted / "ours"), str(manifest), "--latency", "0.24"])


def test_a_stream_with_another_chunk_is_refused_with_the_list(converted: Path) -> None:
    recognizer = load_recognizer(converted / "ours")
    with refused(InputError, "chunk_seconds ... 0.32, 0.08, 0.16 or 0.48; got 0.64"):
        Stream(recognizer, chunk_seconds=0.64)
    assert not Stream(recognizer, chunk_seconds=0.08).note


def test_a_stream_with_another_latency_is_refused_with_the_list(converted: Path) -> None:
    recognizer = load_recognizer(converted / "ours")
    with refused(InputError, "latency ... 0.32, 0.08, 0.16 or 0.48 seconds; got 0.24"):
        Stream(recognizer, latency=0.24)
    with refused(InputError, "latency ... chunk_seconds; got 0.08 and 0.16"):
        Stream(recognizer, latency=0.08, chunk_seconds=0.16)
    assert Stream(recognizer, latency=0.08).ears.chunk_seconds == pytest.approx(0.08)


def test_a_model_without_a_list_has_no_latencies(tmp_path: Path, recording: Path) -> None:
    bundle(tmp_path / "offline")
    with refused(InputError, "--latency ... look-aheads"):
        transcribe([str(tmp_path / "offline"), str(recording), "--latency", "0.32"])
    assert make(["encoder=conformer_streaming_xs"]).chunk_choices == ()


# ---- conversion from and to NeMo


def causal_config(kind: str, **changes: Any) -> dict[str, Any]:
    """Return the config of a tiny causal model in NeMo's form."""
    return config(kind, encoder=CAUSAL | changes, preprocessor=NA_FEATURES)


def causal_state(kind: str) -> dict[str, Tensor]:
    """Return the tensors of a tiny causal model under NeMo's names: LayerNorm, and more bins after the subsampling."""
    weights = {name: w for name, w in state(kind).items() if "running_" not in name and "num_batches" not in name}
    bins = MELS
    for _ in range(3):
        bins = bins // 2 + 1
    weights["encoder.pre_encode.out.weight"] = torch.randn(DIM, CHANNELS * bins)
    return weights


def prompt_state(num_prompts: int) -> dict[str, Tensor]:
    """Return the tensors of a prompt under NeMo's names."""
    draw, hidden = torch.Generator().manual_seed(0), 2 * DIM
    shapes = {"0.weight": (hidden, DIM + num_prompts), "0.bias": (hidden,), "2.weight": (DIM, hidden), "2.bias": (DIM,)}
    return {f"prompt_kernel.{name}": torch.randn(shape, generator=draw) / 4 for name, shape in shapes.items()}


def nemo_archive(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    files = nemo_files(settings, weights)
    return write_tar(folder / "tiny.nemo", [tar_member(name, content) for name, content in files.items()])


@pytest.mark.parametrize("kind", ["rnnt", "hybrid rnnt"])
def test_an_archive_of_nemo_converts_and_converts_back(kind: str, tmp_path: Path) -> None:
    weights = causal_state(kind)
    path = nemo_archive(tmp_path, causal_config(kind), weights)
    before = from_nemo(path).bundle
    encoder = before.config["encoder"]
    assert (encoder["name"], encoder["chunk_frames"], encoder["left_frames"]) == ("conformer_streaming", 4, LEFT)
    assert encoder["training_chunk_frames"] == [look_ahead + 1 for look_ahead in LOOK_AHEADS]
    assert before.config["features"]["normalize"] == {"name": "none"}
    for number, name in ((1, "ours"), (2, "again")):
        source = path if number == 1 else tmp_path / "ours.nemo"
        assert main([str(source), "-o", str(tmp_path / name)]) == 0
        assert main([str(tmp_path / name), "--to", "nemo", "-o", str(tmp_path / f"{name}.nemo")]) == 0
    assert (tmp_path / "ours.nemo").read_bytes() == (tmp_path / "again.nemo").read_bytes()
    back = from_nemo(tmp_path / "ours.nemo").bundle
    assert (back.config, back.files) == (before.config, before.files)
    assert_equal(back.weights, before.weights)
    for ours, theirs in (
        ("convolution.norm.norm.weight", "conv.batch_norm.weight"),
        ("convolution.depthwise.weight", "conv.depthwise_conv.weight"),
    ):
        assert torch.equal(before.weights[f"encoder.blocks.1.{ours}"], weights[f"encoder.layers.1.{theirs}"])
    assert torch.equal(
        before.weights["encoder.subsampling.stages.2.0.weight"], weights["encoder.pre_encode.conv.5.weight"]
    )


@pytest.mark.slow
def test_an_exported_transducer_recognises_whole_recordings_at_its_latency(
    converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    assert export([str(converted / "ours"), "-o", str(tmp_path / "exported"), "--latency", "0.08"]) == 0
    assert "whole recordings" in capsys.readouterr().out
    ours, exported = (load_recognizer(path) for path in (converted / "ours", tmp_path / "exported"))
    set_latency(ours.model, 0.08)
    texts = [[each.text for each in made.transcribe(WAVEFORMS, sample_rate=SAMPLE_RATE)] for made in (ours, exported)]
    assert texts[0] == texts[1]
    assert "recognised again" in Stream(exported).note


@pytest.mark.slow
def test_an_exported_hybrid_streams_at_its_latency_like_the_bundle(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    path = nemo_archive(tmp_path, causal_config("hybrid rnnt"), causal_state("hybrid rnnt"))
    made = from_nemo(path).bundle
    replace_bundle(tmp_path / "ours", made)
    model = load_recognizer(tmp_path / "ours").model
    frames = model.features(sound(2.0))
    with torch.no_grad():
        average = model(frames[None], torch.tensor([len(frames)])).out[0].mean(dim=0)
    made.weights["head.ctc.linear.weight"].mul_(100)  # so that the best token changes from frame to frame
    made.weights["head.ctc.linear.bias"].copy_(-made.weights["head.ctc.linear.weight"] @ average)
    replace_bundle(tmp_path / "ours", made)
    options = ["--decode", "greedy", "--latency", "0.08"]
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "exported"), *options]) == 0
    ours = load_recognizer(tmp_path / "ours", decode={"name": "greedy"})
    exported = load_recognizer(tmp_path / "exported")
    assert set_latency(ours.model, 0.08) == 1
    with refused(InputError, "latency ... exported (0.08 seconds); got 0.32"):
        set_latency(exported.model, 0.32)
    for seed, samples in enumerate((16_000, 9_601)):
        waveform = sound(2.0, seed)[:samples]
        texts = [recognizer.transcribe([waveform], sample_rate=SAMPLE_RATE)[0].text for recognizer in (ours, exported)]
        for recognizer in (ours, exported):
            reader = Stream(recognizer, endpoint_seconds=None, settled_seconds=None)
            captions = [*map(reader.feed, waveform.split(1_000)), reader.finish()]
            texts.append(" ".join(word.text for each in captions for word in each.final))
        soundfile.write(tmp_path / "sound.wav", waveform.numpy(), SAMPLE_RATE, subtype="FLOAT")
        texts.append(" ".join(follow(tmp_path / "exported", 1, tmp_path / "sound.wav", tmp_path).split()))
        assert len(set(texts)) == 1
        assert len(texts[0]) > 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"att_context_size": [[LEFT, 4]]}, "encoder.att_context_size ... multiple of look-ahead + 1; got 12"),
        ({"att_context_size": [[12, 3], [6, 1]]}, "encoder.att_context_size ... one left context"),
        ({"att_context_size": [-1, 3]}, "encoder.att_context_size ... one left context"),
        ({"att_context_size": None}, "encoder.att_context_size ... one left context; got null"),
        ({"att_context_size": [[LEFT, 1], 3]}, "encoder.att_context_size ... one left context"),
        ({"causal_downsampling": False}, "encoder.causal_downsampling ... true"),
        ({"conv_context_size": None}, "encoder.conv_context_size ... causal"),
        ({"conv_norm_type": "batch_norm"}, "encoder.conv_norm_type ... layer_norm"),
        ({"subsampling": "striding", "subsampling_factor": 4}, "encoder.subsampling ... dw_striding"),
    ],
)
def test_an_unsupported_setting_of_nemo_is_refused_in_one_line(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert_refused(nemo_archive(tmp_path, causal_config("rnnt", **changes), causal_state("rnnt")), message, tmp_path)


def test_a_prompt_is_refused_in_one_line(tmp_path: Path) -> None:
    weights = causal_state("rnnt") | {"prompt_kernel.0.weight": torch.zeros(DIM, DIM + 128)}
    assert_refused(nemo_archive(tmp_path, causal_config("rnnt"), weights), "prompt_kernel.0.weight", tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"right_frames": 2}, "encoder.right_frames ... NeMo"),
        ({"training_left_frames": [12, 24]}, "encoder.training_left_frames ... NeMo"),
        ({"training_chunk_frames": [4, None]}, "encoder.left_frames ... multiple of encoder.chunk_frames"),
        ({"chunk_frames": 5}, "encoder.left_frames ... multiple of encoder.chunk_frames"),
    ],
)
def test_a_model_with_contexts_that_nemo_does_not_have_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    ours = from_nemo(nemo_archive(tmp_path, causal_config("rnnt"), causal_state("rnnt"))).bundle
    ours.config["encoder"] |= changes
    replace_bundle(tmp_path / "ours", ours)
    with refused(InputError, message):
        main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")])


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="../shared/models/published (real configs) is missing")
def test_the_published_config_converts_with_small_sizes(tmp_path: Path) -> None:
    text = (PUBLISHED / "nemotron-3.5-asr-streaming-0.6b" / "model_config.yaml").read_text()
    settings = yaml.load(text, yaml.CSafeLoader)
    small = config("rnnt")
    for section, key in (("preprocessor", "features"), ("decoder", "vocab_size"), ("joint", "num_classes")):
        settings[section][key] = small[section][key]
    for key in ("feat_in", "n_layers", "d_model", "subsampling_conv_channels", "ff_expansion_factor", "n_heads"):
        settings["encoder"][key] = small["encoder"][key]
    settings["encoder"]["conv_kernel_size"] = small["encoder"]["conv_kernel_size"]
    settings["decoder"]["prednet"]["pred_hidden"] = HIDDEN
    settings["joint"]["jointnet"] |= {"encoder_hidden": DIM, "pred_hidden": HIDDEN, "joint_hidden": JOINT}
    settings["joint"]["vocabulary"] = small["joint"]["vocabulary"]
    files = nemo_files(settings, causal_state("rnnt") | prompt_state(128))
    files[settings["tokenizer"]["model_path"].removeprefix("nemo:")] = files.pop("0123_tokenizer.model")
    path = write_tar(tmp_path / "published.nemo", [tar_member(name, content) for name, content in files.items()])
    assert main([str(path), "-o", str(tmp_path / "ours")]) == 0
    encoder = read_bundle(tmp_path / "ours").config["encoder"]
    assert (encoder["training_chunk_frames"], encoder["left_frames"]) == ([4, 1, 7, 14], 56)
    recognizer = load_recognizer(tmp_path / "ours")
    recognizer.transcribe(torch.randn(2 * 16000), sample_rate=16000, language="de-DE")
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    with tarfile.open(tmp_path / "back.nemo") as archive:
        member = archive.extractfile("./model_config.yaml")
        assert member is not None
        back = yaml.load(member.read(), yaml.CSafeLoader)
    defaults = settings["model_defaults"]
    assert back["target"] == settings["target"]
    assert {key: back["model_defaults"][key] for key in ("num_prompts", "prompt_dictionary")} == {
        key: defaults[key] for key in ("num_prompts", "prompt_dictionary")
    }
