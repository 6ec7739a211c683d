"""Conversion of transformers' wav2vec 2.0 and HuBERT to a bundle and back: features, logits, texts, every tensor."""

import json
import math
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from transformers import (
    HubertConfig,
    HubertForCTC,
    HubertModel,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2ForPreTraining,
)

from asr.apps.convert.huggingface.convert import from_huggingface
from asr.apps.zoo.encoder.subsampling.sample_conv import HOP, WINDOW, SampleConv
from asr.apps.zoo.encoder.wav2vec2 import PositionConv
from asr.apps.zoo.features.waveform import Waveform
from asr.apps.zoo.wav2vec2 import KERNELS, features_config
from asr.base.text.normalize import basic
from asr.components.features.batched.front_end import FrontEnd
from asr.convert import main
from asr.core.build import build_features, build_model
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.export import main as export
from asr.lengths import padding_mask
from asr.train import train
from tests.conftest import SHARED, TINY, resolved, settings_with, tone_corpus
from tests.parakeet import DAMAGES, change, damage, randomized
from tests.processes import metrics
from tests.refusals import refused
from tests.test_convert import assert_equal, assert_refused

PUBLISHED = SHARED.parent / "models" / "published_2" / "wav2vec2-arabic"
SAMPLE_RATE = 16_000
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "conv_dim": 7 * [8],
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2,
}
SMALL: dict[str, Any] = SIZES | {"feat_extract_norm": "layer", "do_stable_layer_norm": True, "conv_bias": True}
IDS = {"[UNK]": 0, "b": 1, "|": 2, "é": 3, "[PAD]": 4, "a": 5, "c": 6, "</s>": 7, "<s>": 8, "'": 9}  # in any order
BLANK = IDS["[PAD]"]
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "wav2vec2": (Wav2Vec2ForCTC, Wav2Vec2Config, {}),
    "an odd kernel without biases": (
        Wav2Vec2ForCTC,
        Wav2Vec2Config,
        {"conv_bias": False, "num_conv_pos_embeddings": 5},
    ),
    "hubert": (HubertForCTC, HubertConfig, {}),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
SAMPLES = [400, 401, 719, 720, 721, 1039, 1040, 5_003, 16_000, 21_733]


def save(folder: Path, kind: str = "wav2vec2", **options: Any) -> Path:
    """Save a tiny model with random weights as transformers does, with a tokenizer and a feature extractor."""
    folder.mkdir(parents=True, exist_ok=True)
    model_class, config_class, own = KINDS[kind]
    model = randomized(model_class(config_class(**SMALL | own | options, vocab_size=len(IDS), pad_token_id=BLANK)))
    with torch.no_grad():
        model.lm_head.weight *= 4.0
        model.lm_head.bias[BLANK] -= 2.0
    model.save_pretrained(folder)
    return with_tokenizer(folder)


def with_tokenizer(folder: Path) -> Path:
    (folder / "ids.json").write_text(json.dumps(IDS, ensure_ascii=False))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "ids.json"), unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    (folder / "ids.json").unlink()
    return folder


def loaded(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text())
    return (HubertForCTC if config["model_type"] == "hubert" else Wav2Vec2ForCTC).from_pretrained(folder).eval()


def sound(samples: int, seed: int = 0) -> Tensor:
    """Return noise that fades in and out, not around zero, (S,)."""
    generator = torch.Generator().manual_seed(seed)
    return 0.2 * torch.randn(samples, generator=generator) * torch.linspace(0, 9, samples).sin() + 0.03


def blank_first(logits: Tensor) -> Tensor:
    order = [BLANK, *(number for number in range(logits.shape[-1]) if number != BLANK)]
    return logits[..., order]


@torch.no_grad()
def logits_of(folder: Path, waveform: Tensor) -> Tensor:
    """Return transformers' logits of a recording alone, (T', V)."""
    extractor = Wav2Vec2FeatureExtractor.from_pretrained(folder)
    inputs = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    logits: Tensor = loaded(folder)(input_values=inputs["input_values"]).logits[0]
    return logits


def spelled(logits: Tensor) -> str:
    """Return the greedy text of logits without special pieces."""
    names = {number: name for name, number in IDS.items()}
    tokens = logits.argmax(-1).unique_consecutive().tolist()
    letters = [names[token] for token in tokens if len(names[token]) == 1]
    return " ".join("".join(letters).replace("|", " ").split())


@EACH_KIND
@torch.no_grad()
def test_log_probs_of_a_batch_equal_those_of_transformers_for_each_recording_alone_and_in_a_batch(
    kind: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "theirs", kind)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    model, theirs = load_recognizer(tmp_path / "ours").model.double().eval(), loaded(folder).double()
    waveforms = [sound(samples, seed=samples).double() for samples in SAMPLES]
    frames = [waveform.unfold(0, WINDOW, HOP) for waveform in waveforms]
    lengths = torch.tensor([*map(len, frames), 0])
    features = torch.full((len(lengths), max(map(len, frames)) + 3, WINDOW), math.nan, dtype=torch.float64)
    for row, own in enumerate(frames):
        features[row, : len(own)] = own
    encoded = model(features, lengths)
    log_probs = model.head.frame_head.log_probs(encoded.out)
    counts = torch.tensor(SAMPLES)
    padded = nn.utils.rnn.pad_sequence(waveforms, batch_first=True)
    together = theirs(padded, attention_mask=~padding_mask(counts, max(SAMPLES))).logits
    for row, waveform in enumerate(waveforms):
        expected = blank_first(theirs(waveform[None]).logits[0]).log_softmax(-1)
        assert int(encoded.lengths[row]) == len(expected) == model.encoder.output_lengths(len(frames[row]))
        torch.testing.assert_close(log_probs[row, : len(expected)], expected, rtol=0, atol=1e-10)
        in_batch = blank_first(together[row, : len(expected)]).log_softmax(-1)
        torch.testing.assert_close(in_batch, expected, rtol=0, atol=1e-10)
    assert log_probs.isfinite().all()


@EACH_KIND
@torch.no_grad()
def test_a_batch_of_waveforms_with_junk_in_the_padding_gives_the_log_probs_of_each_alone(
    kind: str, tmp_path: Path
) -> None:
    assert main([str(save(tmp_path / "theirs", kind)), "-o", str(tmp_path / "ours")]) == 0
    model: Any = load_recognizer(tmp_path / "ours").model
    waveforms = [sound(samples, seed=samples) for samples in SAMPLES]
    padded = nn.utils.rnn.pad_sequence(waveforms, batch_first=True, padding_value=math.inf)
    features, lengths = FrontEnd(model.features)(padded, torch.tensor(SAMPLES))
    junk = features.masked_fill(padding_mask(lengths, features.shape[1])[:, :, None], math.nan)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        model = model.to(dtype)
        out = model.head.frame_head.log_probs(model(junk.to(dtype), lengths).out)
        for row, waveform in enumerate(waveforms):
            own = model.features(waveform)
            torch.testing.assert_close(features[row, : len(own)], own, rtol=0, atol=2e-6)
            alone = model(features[row : row + 1, : len(own)].to(dtype), lengths[row : row + 1])
            expected = model.head.frame_head.log_probs(alone.out)[0]
            torch.testing.assert_close(out[row, : len(expected)], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("normalised", [True, False], ids=["normalised", "as they are"])
@pytest.mark.parametrize("samples", [400, 719, 720, 24_001])
def test_features_are_the_samples_of_transformers_extractor_that_each_output_reads(
    samples: int, normalised: bool
) -> None:
    extractor, waveform = Wav2Vec2FeatureExtractor(do_normalize=normalised), sound(samples)
    ours = build_features({"features": features_config(extractor.to_dict())})(waveform)
    theirs = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE)["input_values"][0]
    expected = [theirs[start : start + WINDOW] for start in range(0, samples - WINDOW + 1, HOP)]
    assert len(expected) == (samples - WINDOW) // HOP + 1
    torch.testing.assert_close(ours, torch.tensor(np.stack(expected)), rtol=0, atol=2e-6)


def test_a_waveform_that_fills_no_window_has_no_frames() -> None:
    features = Waveform(
        sample_rate=SAMPLE_RATE, frame_length_seconds=0.025, frame_shift_seconds=0.02, unit_variance=True
    )
    assert features(sound(399)).shape == (0, WINDOW)
    assert features(torch.zeros(800)).abs().max() == 0  # silence, which has no variance


def test_a_streaming_encoder_needs_samples_that_are_not_normalised_over_the_recording() -> None:
    tokenizer: Any = SimpleNamespace(vocab_size=4)
    for switch in (False, True):
        section = resolved("features=waveform")["features"] | {"unit_variance": switch}
        config = resolved("encoder=conformer_streaming_xs") | {"features": section}
        features = build_features(config)
        with refused(InputError, "features.normalize ... waveform") if switch else nullcontext():
            build_model(config, tokenizer, features)


@torch.no_grad()
def test_the_convolutions_over_samples_equal_loops_over_the_whole_waveform() -> None:
    front_end = randomized(SampleConv(WINDOW, 6, num_channels=5, bias=True, dropout=0.0)).double()
    waveform = sound(1_700).double()
    frames = waveform.unfold(0, WINDOW, HOP)
    rows = [[float(sample)] for sample in waveform]
    for conv, norm in zip(front_end.convs, front_end.norms, strict=True):
        before = torch.tensor(rows, dtype=torch.float64)
        rows = []
        for start in range(0, len(before) - conv.kernel_size[0] + 1, conv.stride[0]):
            window = before[start : start + conv.kernel_size[0]]
            out = torch.einsum("kc,ock->o", window, conv.weight) + conv.bias
            centred = out - out.mean()
            out = centred / (centred.square().mean() + 1e-5).sqrt() * norm.weight + norm.bias
            rows.append((out * 0.5 * (1 + torch.erf(out / 2**0.5))).tolist())
    expected = front_end.linear(front_end.norm(torch.tensor(rows, dtype=torch.float64)))
    out, lengths = front_end(frames[None], torch.tensor([len(frames)]))
    assert lengths.tolist() == [len(frames)] == [len(rows)]
    torch.testing.assert_close(out[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kernel_size", [5, 6])
@torch.no_grad()
def test_the_convolution_for_positions_equals_torchs_weight_norm(kernel_size: int) -> None:
    ours = randomized(PositionConv(8, kernel_size, groups=2)).double()
    theirs: Any = nn.Conv1d(8, 8, kernel_size, padding=kernel_size // 2, groups=2).double()
    nn.utils.parametrizations.weight_norm(theirs, dim=2)
    theirs.parametrizations.weight.original0.copy_(ours.scale)
    theirs.parametrizations.weight.original1.copy_(ours.direction)
    theirs.bias.copy_(ours.bias)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    expected = nn.functional.gelu(theirs(x.transpose(1, 2))[:, :, :9]).transpose(1, 2)
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=1e-12)


def test_a_recording_shorter_than_a_frame_has_no_text(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    recognizer = load_recognizer(tmp_path / "ours")
    assert [recognizer.transcribe(sound(samples), sample_rate=SAMPLE_RATE).text for samples in (16, 399)] == ["", ""]


@EACH_KIND
def test_a_model_saved_by_transformers_gives_equal_texts_and_converts_back(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours, back = save(tmp_path / "theirs", kind), tmp_path / "ours", tmp_path / "back"
    waveforms = [sound(48_000), sound(20_800, seed=1), sound(32_208, seed=2)]
    logits = [logits_of(theirs, waveform) for waveform in waveforms]
    texts = [basic(spelled(frames)) for frames in logits]  # the bundle's normaliser
    assert any(len(text) > 1 for text in texts), texts

    assert main([str(theirs), "-o", str(ours)]) == 0
    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    assert f"{len(tensors)} tensors: {len(tensors) - 1} taken, 1 not needed" in capsys.readouterr().out
    recognizer = load_recognizer(ours)
    assert [each.text for each in recognizer.transcribe(waveforms, sample_rate=SAMPLE_RATE)] == texts

    assert main([str(ours), "--to", "huggingface", "-o", str(back)]) == 0
    for waveform, expected in zip(waveforms, logits, strict=True):
        torch.testing.assert_close(logits_of(back, waveform), expected, rtol=0, atol=1e-4)
    begin = "hubert." if kind == "hubert" else "wav2vec2."
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith("masked_spec_embed")}
    kept = {name.replace(begin, "wav2vec2."): tensor for name, tensor in kept.items()}
    assert_equal(safetensors.torch.load_file(back / "model.safetensors"), kept)
    tokenizer = Wav2Vec2CTCTokenizer.from_pretrained(back)
    assert {name: tokenizer.convert_tokens_to_ids(name) for name in IDS} == IDS
    again, before = from_huggingface(back).bundle, read_bundle(ours)
    assert (again.config, again.files) == (before.config, before.files)
    assert_equal(again.weights, before.weights)


def test_the_names_of_older_checkpoints_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """torch before 2.0 called the parts of a kernel weight_g and weight_v, and the weights were in torch's format."""
    folder = save(tmp_path / "theirs")
    assert main([str(folder), "-o", str(tmp_path / "new")]) == 0
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    for new, old in zip(*KERNELS, strict=True):
        tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    assert {"lm_head.weight", "wav2vec2.masked_spec_embed", "wav2vec2.encoder.pos_conv_embed.conv.weight_g"} <= {
        *tensors
    }
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    capsys.readouterr()
    assert main([str(folder), "-o", str(tmp_path / "old")]) == 0
    assert f"{len(tensors)} tensors: {len(tensors) - 1} taken, 1 not needed" in capsys.readouterr().out
    assert_equal(read_bundle(tmp_path / "old").weights, read_bundle(tmp_path / "new").weights)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="../shared/models/published_2 (real configs) is missing")
def test_a_published_folder_gives_the_texts_of_transformers(tmp_path: Path) -> None:
    """The config, the vocabulary and the settings of an XLS-R for Arabic, as published; small sizes, random weights."""
    folder = tmp_path / "theirs"
    shutil.copytree(PUBLISHED, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").chmod(0o644)
    folder.chmod(0o755)
    (folder / "config.json").write_text(json.dumps(config | SIZES | {"output_hidden_size": 16}))
    model = randomized(Wav2Vec2ForCTC(Wav2Vec2Config.from_pretrained(folder)))
    with torch.no_grad():
        model.lm_head.weight *= 4.0
        model.lm_head.bias[config["pad_token_id"]] -= 2.0
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors", {"format": "pt"})
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    recognizer, tokenizer = load_recognizer(tmp_path / "ours"), Wav2Vec2CTCTokenizer.from_pretrained(folder)
    assert len(recognizer.model.tokenizer.pieces) == config["vocab_size"] == 46
    waveforms = [sound(48_000), sound(20_800, seed=1)]
    expected = [
        tokenizer.decode(logits_of(folder, waveform).argmax(-1), skip_special_tokens=True) for waveform in waveforms
    ]
    texts = [each.text for each in recognizer.transcribe(waveforms, sample_rate=SAMPLE_RATE)]
    assert texts == [recognizer.model.normalize(text) for text in expected]
    assert all(len(text) > 3 for text in texts)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [{"audio_filepath": f"{text}.wav", "duration": 1.0, "text": text} for text in ("Bäh, das!", "ja")]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("kind", ["wav2vec2", "hubert"])
def test_a_model_without_head_gets_one_for_the_characters_of_texts(
    kind: str, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    pre_trained: Any = {
        "wav2vec2": lambda: Wav2Vec2ForPreTraining(
            Wav2Vec2Config(**SMALL, codevector_dim=8, proj_codevector_dim=8, num_codevectors_per_group=4)
        ),
        "hubert": lambda: HubertModel(HubertConfig(**SMALL)),
    }[kind]()
    randomized(pre_trained).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    with refused(InputError, "lm_head ... --texts"):
        main([str(folder), "-o", str(ours)])
    assert main([str(folder), "-o", str(ours), "--texts", str(texts)]) == 0
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    others = ("quantizer.", "project_", "wav2vec2.masked_spec_embed", "masked_spec_embed")
    needed = {name: tensor for name, tensor in tensors.items() if not name.startswith(others)}
    assert f"{len(tensors)} tensors: {len(needed)} taken" in capsys.readouterr().out
    assert "Train it first" in (ours / "README.md").read_text()
    assert main([str(ours), "--to", "huggingface", "-o", str(back)]) == 0
    written = safetensors.torch.load_file(back / "model.safetensors")
    begin = "" if kind == "wav2vec2" else "wav2vec2."
    assert all(torch.equal(written[f"{begin}{name}"], tensor) for name, tensor in needed.items())
    assert len(logits_of(back, sound(16_000))) == 49
    assert_refused_with_texts(save(tmp_path / "with head"), texts, tmp_path)


def assert_refused_with_texts(folder: Path, texts: Path, tmp_path: Path) -> None:
    with refused(InputError, "--texts ... has a head"):
        main([str(folder), "-o", str(tmp_path / "refused"), "--texts", str(texts)])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a base model": ("config", {"feat_extract_norm": "group"}, "feat_extract_norm ... layer; got 'group'"),
    "norms after the sub-layers": ("config", {"do_stable_layer_norm": False}, "do_stable_layer_norm; got false"),
    "an adapter after the encoder": ("config", {"add_adapter": True}, "add_adapter; got true"),
    "adapters for languages": ("config", {"adapter_attn_dim": 16}, "adapter_attn_dim; got 16"),
    "a new key": ("config", {"window": 3}, "config.window ... not support"),
    "an activation": ("config", {"hidden_act": "relu"}, "hidden_act; got 'relu'"),
    "another eps": ("config", {"layer_norm_eps": 1e-6}, "layer_norm_eps; got 1e-06"),
    "other strides": ("config", {"conv_stride": [5, 2, 2, 2, 2, 2, 3]}, "conv_stride"),
    "different channels": ("config", {"conv_dim": [8, 8, 8, 8, 8, 8, 9]}, "conv_dim"),
    "channels that are no list": ("config", {"conv_dim": 8}, "conv_dim; got 8"),
    "no channels": ("config", {"conv_dim": 7 * [0]}, "num_channels; got 0"),
    "a flag that is a number": ("config", {"conv_bias": 3}, "encoder.subsampling.bias; got 3"),
    "groups that do not divide": ("config", {"num_conv_pos_embedding_groups": 3}, "position_groups ... dim=16"),
    "a billion layers": ("config", {"num_hidden_layers": 10**9}, "num_layers"),
    "a negative size": ("config", {"hidden_size": -16}, "encoder.dim; got -16"),
    "tensors of another size": ("config", {"hidden_size": 32}, "32 ... config says"),
    "a blank after the last piece": ("config", {"pad_token_id": 10}, "pad_token_id; got 10"),
    "a head of another size": ("config", {"vocab_size": 12}, "lm_head.weight ... 12"),
    "another extractor": ("preprocessor_config", {"feature_extractor_type": "X"}, "Wav2Vec2FeatureExtractor"),
    "a new feature": ("preprocessor_config", {"mean": 1}, "preprocessor.mean ... not support"),
    "two values per sample": ("preprocessor_config", {"feature_size": 2}, "feature_size; got 2"),
    "no samples": ("preprocessor_config", {"sampling_rate": 0}, "sampling_rate; got 0"),
    "pieces by language": ("vocab", {"eng": {"a": 1}}, "vocab.json; got 'eng'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_asr_does_not_support_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, settings, message = REFUSED[case]
    folder = save(tmp_path / "theirs")
    change(folder / f"{name}.json", **settings)
    assert_refused(folder, message, tmp_path)


def test_options_of_other_models_are_refused(tmp_path: Path) -> None:
    folder = str(save(tmp_path / "theirs"))
    for options, message in ((["--pad-mode", "reflect"], "--pad-mode; got reflect"), (["--adapter"], "--adapter")):
        with refused(InputError, message):
            main([folder, "-o", str(tmp_path / "ours"), *options])


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json", "preprocessor_config.json"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(name: str, how: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    damage(folder / name, how)
    assert_refused(folder, name, tmp_path)


def test_a_run_folder_becomes_a_folder_for_the_hub_whose_card_names_the_model(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "hub"), "--to", "huggingface"]) == 0
    assert "Wav2Vec2ForCTC" in (tmp_path / "hub" / "README.md").read_text()


def test_a_frame_of_more_samples_than_the_convolutions_read_is_refused() -> None:
    with refused(InputError, "400 ... sample_conv; got 401"):
        SampleConv(401, 8, num_channels=4, bias=True, dropout=0.0)


@pytest.mark.slow
def test_an_exported_model_has_the_texts_of_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "onnx")]) == 0
    assert "texts are equal" in capsys.readouterr().out
    models = [load_recognizer(tmp_path / name) for name in ("ours", "onnx")]
    texts = [model.transcribe(sound(48_000), sample_rate=SAMPLE_RATE).text for model in models]
    assert texts[0] == texts[1] != ""


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="../shared/models/published_2 (real configs) is missing")
@torch.no_grad()
def test_the_published_size_gives_the_log_probs_of_transformers(tmp_path: Path) -> None:
    """The config of an XLS-R, with 315 million random parameters; needs 5 GB of memory and 3 GB of disk."""
    folder, waveform = tmp_path / "theirs", sound(48_000)
    torch.manual_seed(0)
    config = Wav2Vec2Config.from_pretrained(PUBLISHED)
    model = Wav2Vec2ForCTC(config).eval()
    assert round(sum(map(torch.numel, model.parameters())) / 1e6) == 315
    model.save_pretrained(folder)
    del model
    for name in ("preprocessor_config", "tokenizer_config", "vocab", "special_tokens_map", "added_tokens"):
        shutil.copyfile(PUBLISHED / f"{name}.json", folder / f"{name}.json")
    blank = config.pad_token_id
    logits = logits_of(folder, waveform)
    expected = torch.cat([logits[:, blank : blank + 1], logits[:, :blank], logits[:, blank + 1 :]], dim=1).log_softmax(
        -1
    )
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    shutil.rmtree(folder)
    ours: Any = load_recognizer(tmp_path / "ours").model
    features = ours.features(waveform)
    encoded = ours(features[None], torch.tensor([len(features)]))
    torch.testing.assert_close(ours.head.frame_head.log_probs(encoded.out)[0], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("adapter", [["adapter=lora", "adapter.trained=[head.*]"], []], ids=["lora", "whole"])
def test_steps_of_training_lower_the_loss(adapter: list[str], tones: Path, tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64, "num_conv_pos_embedding_groups": 4}
    folder, ours, run_dir = tmp_path / "theirs", tmp_path / "ours", tmp_path / "run"
    randomized(HubertModel(HubertConfig(**SMALL | small))).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(sampling_rate=8000).save_pretrained(folder)
    assert main([str(folder), "-o", str(ours), "--texts", str(tones / "train.jsonl")]) == 0
    short = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
    given = [*short, *tone_corpus(tones), f"init.from={ours}", f"run_dir={run_dir}", *adapter]
    given += ["trainer.max_steps=12", "trainer.max_epochs=50", "optimizer.lr=1e-2"]
    train(with_parts(settings_with(*given), given))
    losses = [float(row["train/loss"]) for row in metrics(run_dir) if row["train/loss"]]
    assert sum(losses[-3:]) < sum(losses[:3]), losses
    weights = safetensors.torch.load_file(run_dir / "bundle" / "weights.safetensors")
    assert all(".lora_" in name or name.startswith("head.") for name in weights) == bool(adapter)
    if not adapter:
        assert main([str(run_dir / "bundle"), "--to", "huggingface", "-o", str(tmp_path / "back")]) == 0
        assert_equal(from_huggingface(tmp_path / "back").bundle.weights, read_bundle(run_dir / "bundle").weights)
