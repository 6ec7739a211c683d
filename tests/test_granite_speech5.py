"""Conversion of transformers' granite TurboCTC to a bundle and back: features, logits, texts, and every tensor."""

import json
import math
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import (
    GraniteSpeech5CTCConfig,
    GraniteSpeech5FeatureExtractor,
    GraniteSpeech5ForCTC,
    GraniteSpeech5Processor,
    ParakeetTokenizer,
)

from asr.apps.convert.huggingface.convert import from_huggingface, to_huggingface
from asr.apps.convert.huggingface.tokenizer import sentencepiece_of
from asr.apps.zoo.encoder.block.attention.block_attention import BlockAttention
from asr.apps.zoo.encoder.subsampling.stacked_deltas import deltas
from asr.apps.zoo.granite_speech5 import encoder_config, features_config
from asr.base.settings.read import as_mapping
from asr.base.text.normalize import basic
from asr.convert import main
from asr.core.build import build_features, component
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.export import main as export
from asr.lengths import padding_mask
from tests.conftest import SHARED, TINY, resolved, settings_with, tone_corpus
from tests.parakeet import DAMAGES, damage, randomized, tokenizer
from tests.processes import bundle, die_at_save, finish, metrics, start
from tests.refusals import refused
from tests.test_convert import assert_equal, assert_refused

SAMPLE_RATE, BINS = 16_000, 80
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 8,
    "context_size": 6,
    "conv_kernel_size": 5,
}
VOCAB_SIZE = len(tokenizer())
BYTE_LEVEL_SIZE = 270  # the blank, 256 bytes, some longer pieces
OTHERS: dict[str, dict[str, Any]] = {
    "small blocks": {},
    "published blocks": {"context_size": 128, "max_position_embeddings": 512},
    "three strides, no bias": {"subsample_layers": [0, 1, 2], "attention_bias": False, "conv_expansion_factor": 3},
    "no strides": {"subsample_layers": []},
}
EACH = pytest.mark.parametrize("options", OTHERS.values(), ids=OTHERS)
# Frames, an even number: each remainder modulo the largest stride, few frames, and at each rate several blocks of 128.
FRAMES = [2, 4, 6, 8, 10, 16, 18, 90, 250, 300, 602, 604, 606, 608, 610, 2_406]


def save(folder: Path, blank: int = 0, vocab_size: int = VOCAB_SIZE, **options: Any) -> Path:
    """Save a tiny model with random weights as transformers does, with its processor."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder = SMALL | options | {"vocab_size": vocab_size}
    config = GraniteSpeech5CTCConfig(vocab_size=vocab_size, pad_token_id=blank, encoder_config=encoder)
    model = randomized(GraniteSpeech5ForCTC(config))
    with torch.no_grad():
        model.encoder.input_linear.weight *= 8.0  # so that frames of noise differ
        model.ctc_head.weight *= 8.0
        model.ctc_head.bias[blank] -= 2.0
        model.ctc_head.bias[1 if blank == 0 else 0] -= 99.0  # the unknown piece, which asr spells
    model.save_pretrained(folder)
    return with_processor(folder, blank)


def with_processor(folder: Path, blank: int = 0) -> Path:
    """Save a processor whose tokenizer has the blank as its first or last piece."""
    GraniteSpeech5Processor(GraniteSpeech5FeatureExtractor(), tokenizer()).save_pretrained(folder)
    if blank == 0:
        content = json.loads((folder / "tokenizer.json").read_text())
        for token in content["added_tokens"]:
            token["id"] = (token["id"] + 1) % VOCAB_SIZE
        content["model"]["vocab"] = {"<pad>": 0} | {name: n + 1 for name, n in content["model"]["vocab"].items()}
        (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    return folder


def sound(seconds: float, seed: int = 0) -> Tensor:
    """Return a melody, a note every 0.1 s, with noise, (S,)."""
    generator = torch.Generator().manual_seed(seed)
    samples = int(seconds * SAMPLE_RATE)
    notes = 100 + 3_000 * torch.rand(samples // 1_600 + 1, generator=generator)  # Hz
    phase = (notes.repeat_interleave(1_600)[:samples] / SAMPLE_RATE).cumsum(0)
    return 0.3 * (2 * math.pi * phase).sin() + 0.003 * torch.randn(samples, generator=generator)


def stacked(features: Tensor) -> Tensor:
    """Return what transformers' encoder reads, (T / 2, 4F), for features (T, F)."""
    padding = torch.zeros(1, len(features), dtype=torch.bool)
    with_deltas = torch.cat([features, deltas(features[None], padding)[0]], dim=1)
    return with_deltas.unflatten(0, (-1, 2)).flatten(1)


@torch.no_grad()
def logits_of(folder: Path, waveform: Tensor) -> Tensor:
    """Return transformers' logits of a recording alone, (T', V)."""
    model = GraniteSpeech5ForCTC.from_pretrained(folder).eval()
    extractor = GraniteSpeech5FeatureExtractor.from_pretrained(folder)
    inputs = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    logits: Tensor = model(input_features=inputs["input_features"]).logits[0]
    return logits


@EACH
@torch.no_grad()
def test_logits_alone_and_in_a_batch_equal_those_of_transformers_for_each_recording_alone(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """transformers' extractor changes the last frames of a recording in a batch, so recordings alone are the truth."""
    folder = save(tmp_path / "theirs", **options)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    model = load_recognizer(tmp_path / "ours").model.double().eval()
    theirs: Any = GraniteSpeech5ForCTC.from_pretrained(folder).double().eval()
    lengths = torch.tensor(FRAMES)
    features = torch.randn(len(FRAMES), max(FRAMES) + 3, BINS, dtype=torch.float64)
    padded = features.masked_fill(padding_mask(lengths, features.shape[1])[:, :, None], math.nan)
    encoded = model(padded, lengths)
    log_probs = model.head.frame_head.log_probs(encoded.out)
    for row, frames in enumerate(FRAMES):
        alone = model(features[row : row + 1, :frames], lengths[row : row + 1])
        num_frames = model.encoder.output_lengths(frames)
        assert int(encoded.lengths[row]) == int(alone.lengths) == num_frames
        if num_frames == 0:
            continue
        expected = theirs(input_features=stacked(features[row, :frames])[None]).logits[0].log_softmax(-1)
        assert len(expected) == num_frames
        for ours in (log_probs[row, :num_frames], model.head.frame_head.log_probs(alone.out)[0]):
            torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("samples", [319, 320, 480, 481, 4_000, 4_320, 8_000, 8_001, 24_160, 24_319])
def test_features_equal_those_of_transformers_extractor(samples: int) -> None:
    """transformers cannot mirror waveforms shorter than half an FFT."""
    extractor, waveform = GraniteSpeech5FeatureExtractor(), sound(2.0)[:samples]
    features = build_features({"features": features_config({"encoder_config": {}}, extractor.to_dict())})
    ours = features(waveform)
    assert len(ours) == features.num_frames(samples)
    theirs = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    assert int(theirs["attention_mask"].sum()) == len(theirs["input_features"][0]) > 0
    torch.testing.assert_close(stacked(ours), theirs["input_features"][0], rtol=0, atol=1e-3)


def test_features_of_silence_equal_those_of_transformers_extractor() -> None:
    extractor, waveform = GraniteSpeech5FeatureExtractor(), torch.zeros(1_600)
    ours = build_features({"features": features_config({"encoder_config": {}}, extractor.to_dict())})(waveform)
    theirs = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    torch.testing.assert_close(stacked(ours), theirs["input_features"][0], rtol=0, atol=1e-5)


def test_a_recording_shorter_than_an_encoder_frame_has_no_text(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    recognizer = load_recognizer(tmp_path / "ours")
    texts = [recognizer.transcribe(sound(seconds), sample_rate=SAMPLE_RATE).text for seconds in (0.001, 0.01, 0.06)]
    assert texts == ["", "", ""]


@pytest.mark.parametrize("blank", [0, VOCAB_SIZE - 1])
@pytest.mark.parametrize("options", [options for options in OTHERS.values() if "context_size" not in options])
def test_a_model_saved_by_transformers_gives_equal_texts_and_converts_back(
    options: dict[str, Any], blank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours, back = save(tmp_path / "theirs", blank, **options), tmp_path / "ours", tmp_path / "back"
    waveforms = [sound(3.0), sound(1.3, seed=1), sound(2.013, seed=2)]
    logits = [logits_of(theirs, waveform) for waveform in waveforms]
    read = ParakeetTokenizer.from_pretrained(theirs)
    texts = [basic(read.decode(frames.argmax(-1), skip_special_tokens=True)) for frames in logits]
    assert any(len(text) > 1 for text in texts), texts

    assert main([str(theirs), "-o", str(ours)]) == 0
    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    assert f"{len(tensors)} tensors: {len(tensors) - 4} taken, 4 not needed" in capsys.readouterr().out
    recognizer = load_recognizer(ours)
    assert [each.text for each in recognizer.transcribe(waveforms, sample_rate=SAMPLE_RATE)] == texts

    assert main([str(ours), "--to", "huggingface", "-o", str(back)]) == 0
    for waveform, expected in zip(waveforms, logits, strict=True):
        assert torch.equal(logits_of(back, waveform), expected)
    assert_equal(safetensors.torch.load_file(back / "model.safetensors"), tensors)
    processor = GraniteSpeech5Processor.from_pretrained(back)
    assert processor.feature_extractor.to_dict() == GraniteSpeech5FeatureExtractor().to_dict()
    assert processor.tokenizer.decode(logits[0].argmax(-1)) == read.decode(logits[0].argmax(-1))
    again, before = from_huggingface(back).bundle, read_bundle(ours)
    assert (again.config, again.files) == (before.config, before.files)
    assert_equal(again.weights, before.weights)


def with_byte_level_tokenizer(folder: Path) -> Path:
    """Give a folder the kind of tokenizer.json and the tokenizer_config.json of granite-speech-5.0-470m-turboctc."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BYTE_LEVEL_SIZE,
        special_tokens=["<|blank|>"],
        initial_alphabet=[*pre_tokenizers.ByteLevel.alphabet()],
        show_progress=False,
    )
    made.train_from_iterator(["ein größeres wort und noch eines"] * 9, trainer)
    made.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "<|blank|>", "processor_class": "GraniteSpeech5Processor"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**names, "tokenizer_class": "ParakeetTokenizer"}))
    return folder


def test_a_byte_level_tokenizer_as_published_gives_the_texts_of_transformers(tmp_path: Path) -> None:
    theirs, ours, back = (tmp_path / name for name in ("theirs", "ours", "back"))
    with_byte_level_tokenizer(save(theirs, vocab_size=BYTE_LEVEL_SIZE))
    waveforms = [sound(3.0), sound(1.3, seed=1)]
    read = ParakeetTokenizer.from_pretrained(theirs)
    texts = [read.decode(logits_of(theirs, waveform).argmax(-1), skip_special_tokens=True) for waveform in waveforms]
    assert any("\N{REPLACEMENT CHARACTER}" in text for text in texts)
    assert main([str(theirs), "-o", str(ours)]) == 0
    config = read_bundle(ours).config
    assert (config["tokenizer"]["name"], config["normalizer"]) == ("huggingface", "basic")
    recognizer = load_recognizer(ours)
    decoded = [recognizer.model.tokenizer.decode(recognizer.model.tokenizer.encode(text)) for text in ("größe", "日本")]
    assert decoded == ["größe", "日本"]
    hypotheses = [each.text for each in recognizer.transcribe(waveforms, sample_rate=SAMPLE_RATE)]
    assert hypotheses == [basic(text) for text in texts]
    assert main([str(ours), "--to", "huggingface", "-o", str(back)]) == 0
    assert ParakeetTokenizer.from_pretrained(back).decode([5, 60, 7]) == read.decode([5, 60, 7])
    with refused(InputError, "byte-level BPE"):
        sentencepiece_of(config["tokenizer"], read_bundle(ours).files["tokenizer.json"])


def test_the_published_configs_are_read() -> None:
    """granite-speech-5.0-470m-turboctc; preprocessor_config.json beside them is an older file of remote code."""
    folder = SHARED.parent / "models" / "published_2" / "granite-speech-5.0-470m-turboctc"
    if not folder.is_dir():
        pytest.skip("needs ../shared/models/published_2")
    config, processor = (json.loads((folder / f"{name}.json").read_text()) for name in ("config", "processor_config"))
    encoder = encoder_config(config)
    assert (encoder["dim"], encoder["num_layers"], encoder["block"]["num_heads"]) == (1024, 16, 8)
    assert features_config(config, processor["feature_extractor"])["num_mel_bins"] == 80


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a new key": ("config", {"window": 3}, "config.window ... not support"),
    "an untied head": ("config", {"tie_word_embeddings": False}, "tie_word_embeddings; got false"),
    "a blank after the last piece": ("config", {"pad_token_id": VOCAB_SIZE}, f"pad_token_id; got {VOCAB_SIZE}"),
    "no blank": ("config", {"pad_token_id": None}, "pad_token_id; got null"),
    "no encoder": ("config", {"encoder_config": None}, "encoder_config; got None"),
    "no size of the head": ("config", {"vocab_size": None}, "vocab_size; got null"),
    "two sizes of the head": ("config", {"vocab_size": 50}, f"vocab_size ... 50; got {VOCAB_SIZE}"),
    "a large head": (
        "config",
        {"vocab_size": 10**12, "encoder_config": SMALL | {"vocab_size": 10**12}},
        "vocab_size; got 1000000000000",
    ),
    "a new key of the encoder": ("encoder", {"window": 3}, "encoder_config.window ... not support"),
    "another encoder": ("encoder", {"model_type": "x"}, "encoder_config.model_type; got 'x'"),
    "an activation": ("encoder", {"hidden_act": "relu"}, "hidden_act; got 'relu'"),
    "other strided blocks": ("encoder", {"subsample_layers": [0, 2]}, "subsample_layers; got [0, 2]"),
    "a block twice": ("encoder", {"subsample_layers": [0, 0]}, "subsample_layers; got [0, 0]"),
    "a text for a list": ("encoder", {"subsample_layers": "all"}, "subsample_layers; got 'all'"),
    "a million strided blocks": ("encoder", {"subsample_layers": [*range(10**6)]}, "subsample_layers"),
    "more strided blocks than blocks": ("encoder", {"num_hidden_layers": 1}, "num_strided_layers ... 2 and 1"),
    "one block": ("encoder", {"num_hidden_layers": 1, "subsample_layers": [0]}, "num_intermediate ... 1 blocks"),
    "groups of heads": ("encoder", {"num_key_value_heads": 1}, "num_key_value_heads; got 1"),
    "wide heads": ("encoder", {"head_dim": 4}, "head_dim; got 4"),
    "no heads": ("encoder", {"num_attention_heads": 0, "head_dim": None, "num_key_value_heads": None}, "got 0"),
    "a negative size": ("encoder", {"hidden_size": -16, "head_dim": None}, "encoder.dim; got -16"),
    "a billion layers": ("encoder", {"num_hidden_layers": 10**9}, "num_layers"),
    "a wide network": ("encoder", {"hidden_size": 10**12, "head_dim": None}, "encoder.dim"),
    "tensors of another size": ("encoder", {"hidden_size": 32, "head_dim": None}, "32 ... config says"),
    "a bias that is a text": ("encoder", {"attention_bias": "no"}, "attention_bias; got 'no'"),
    "no biases": ("encoder", {"attention_bias": False}, "bias"),
    "a long block": ("encoder", {"context_size": 9}, "max_distance ... 8 and 9"),
    "no block": ("encoder", {"context_size": 0}, "encoder.block.attention.context; got 0"),
    "a wide table": ("encoder", {"max_position_embeddings": 10**9}, "encoder.block.attention.max_distance"),
    "an even kernel": ("encoder", {"conv_kernel_size": 4}, "kernel_size; got 4"),
    "a large expansion": ("encoder", {"conv_expansion_factor": 10**9}, "expansion"),
    "a dropout that is a text": ("encoder", {"activation_dropout": "x"}, "encoder.block.dropout; got x"),
    "other bins": ("encoder", {"num_mel_bins": 40}, "num_mel_bins ... 80; got 40"),
    "another extractor": ("preprocessor", {"feature_extractor_type": "X"}, "GraniteSpeech5FeatureExtractor"),
    "a new feature": ("preprocessor", {"mean": 1}, "preprocessor.mean ... not support"),
    "no samples": ("preprocessor", {"sampling_rate": 0}, "win_length; got 400"),
    "no hop": ("preprocessor", {"hop_length": 0}, "hop_length; got 0"),
    "another FFT": ("preprocessor", {"n_fft": 1024}, "n_fft; got 1024"),
    "another floor": ("preprocessor", {"logmel_floor_db": 6.0}, "logmel_floor_db; got 6"),
    "other deltas": ("preprocessor", {"delta_win_length": 5}, "delta_win_length; got 5"),
    "another number of features": ("preprocessor", {"feature_size": 80}, "feature_size; got 80"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_asr_does_not_support_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, settings, message = REFUSED[case]
    folder = save(tmp_path / "theirs")
    file = folder / ("processor_config.json" if name == "preprocessor" else "config.json")
    content = json.loads(file.read_text())
    section = {"preprocessor": "feature_extractor", "encoder": "encoder_config"}.get(name)
    (content[section] if section else content).update(settings)
    file.write_text(json.dumps(content))
    assert_refused(folder, message, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "processor_config.json"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(name: str, how: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    damage(folder / name, how)
    assert_refused(folder, name, tmp_path)


def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    head = tensors["encoder.out.weight"]
    cases = {
        "encoder.more ... none": {"encoder.more": torch.zeros(2)},
        "ctc_head.weight ... encoder.out.weight": {"ctc_head.weight": 2 * head},
        "encoder.out_mid.weight": {"encoder.out_mid.weight": head.clone()},
        "finite": {"encoder.out.bias": torch.full((VOCAB_SIZE,), math.nan)},
    }
    for message, changes in cases.items():
        safetensors.torch.save_file(tensors | changes, folder / "model.safetensors")
        assert_refused(folder, message, tmp_path)


def test_the_head_may_be_stored_under_both_of_its_names_or_under_either(tmp_path: Path) -> None:
    folder, ours = save(tmp_path / "theirs"), tmp_path / "ours"
    assert main([str(folder), "-o", str(ours)]) == 0
    before, path = read_bundle(ours).weights, folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tied = {f"ctc_head.{kind}": tensors[f"encoder.out.{kind}"].clone() for kind in ("weight", "bias")}
    without = {name: tensor for name, tensor in tensors.items() if not name.startswith("encoder.out.")}
    for others in (tensors, without):
        safetensors.torch.save_file(others | tied, path)
        assert_equal(from_huggingface(folder).bundle.weights, before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--texts"], "--texts ... has a head"),
        (["--pad-mode", "reflect"], "--pad-mode; got reflect"),
        (["--local-attention", "8"], "attention"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    texts = tmp_path / "train.jsonl"
    texts.write_text(json.dumps({"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}) + "\n")
    folder = save(tmp_path / "theirs")
    given = [part for option in options for part in ([option, str(texts)] if option == "--texts" else [option])]
    with refused(InputError, message):
        main([str(folder), "-o", str(tmp_path / "ours"), *given])


@pytest.mark.parametrize(
    ("section", "settings", "message"),
    [
        ("encoder", {"subsampling": {"name": "stacked_deltas", "factor": 3}}, "encoder.subsampling.factor; got 3"),
        ("features", {"normalize": {"name": "none"}}, "features.normalize; got 'none'"),
        ("head", {"num_intermediate": 2}, "head.num_intermediate; got 2"),
        ("head", {"name": "ctc"}, "head; got 'ctc'"),
    ],
)
def test_a_bundle_with_a_part_that_transformers_does_not_have_is_not_written(
    section: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    bundle = read_bundle(tmp_path / "ours")
    config = {**bundle.config, section: bundle.config[section] | settings}
    with refused(InputError, message):
        to_huggingface(replace(bundle, config=config), tmp_path / "ours")


@torch.no_grad()
def test_block_attention_equals_its_equation_in_loops() -> None:
    dim, heads, context, distance, lengths = 8, 2, 3, 5, [8, 4]
    attention = randomized(BlockAttention(dim, heads, 0.0, context=context, max_distance=distance)).double()
    x = torch.randn(2, 8, dim, dtype=torch.float64)
    out = attention(x, attention.positions(x), padding_mask(torch.tensor(lengths), 8))
    vectors = attention.distances.weight
    for row, length in enumerate(lengths):
        query, key, value = attention.qkv(x[row, :length]).unflatten(1, (3, heads, -1)).unbind(1)
        expected = torch.empty_like(value)
        for i in range(length):
            first = i // context * context
            block = range(first, min(first + context, length))
            for head in range(heads):
                scores = torch.stack([query[i, head] @ (key[j, head] + vectors[j - i + distance]) for j in block])
                weights = (scores / (dim / heads) ** 0.5).softmax(0)
                expected[i, head] = weights @ value[block.start : block.stop, head]
        torch.testing.assert_close(out[row, :length], attention.output(expected.flatten(1)), rtol=0, atol=1e-12)


def test_a_run_folder_becomes_a_folder_for_the_hub_whose_card_names_the_model(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "hub"), "--to", "huggingface"]) == 0
    assert "GraniteSpeech5ForCTC" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.slow
@EACH
def test_an_exported_model_has_the_texts_of_the_bundle(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(save(tmp_path / "theirs", **options)), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "onnx")]) == 0
    assert "texts are equal" in capsys.readouterr().out
    models = [load_recognizer(tmp_path / name) for name in ("ours", "onnx")]
    for seconds in (3.0, 0.37, 11.0):
        texts = [model.transcribe(sound(seconds), sample_rate=SAMPLE_RATE).text for model in models]
        assert texts[0] == texts[1] != ""


@pytest.mark.slow
@torch.no_grad()
def test_the_published_size_gives_the_log_probs_of_transformers(tmp_path: Path) -> None:
    """The default config of transformers, with 473 million random parameters; needs 6 GB of memory and 4 GB of disk."""
    folder = tmp_path / "theirs"
    torch.manual_seed(0)
    model = GraniteSpeech5ForCTC(GraniteSpeech5CTCConfig()).eval()
    assert round(sum(map(torch.numel, model.parameters())) / 1e6) == 473
    model.save_pretrained(folder)
    vocab_size = model.config.vocab_size
    del model
    with_processor(folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"] |= {f"<|{number}|>": number for number in range(VOCAB_SIZE, vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False))
    waveform = sound(12.0)
    expected = logits_of(folder, waveform).log_softmax(-1)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    shutil.rmtree(folder)
    model = load_recognizer(tmp_path / "ours").model
    features = model.features(waveform)
    encoded = model(features[None], torch.tensor([len(features)]))
    log_probs = model.head.frame_head.log_probs(encoded.out)[0]
    torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_fifty_steps_train_an_adapter_and_a_killed_run_resumes(fluent: Path, tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "context_size": 8}
    folder, ours = save(tmp_path / "theirs", **sizes), tmp_path / "ours"
    assert main([str(folder), "-o", str(ours)]) == 0
    short = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
    given = [*short, *tone_corpus(fluent), f"init.from={ours}", "adapter=lora", "adapter.trained=[head.*]"]
    given += ["trainer.max_steps=50", "trainer.max_epochs=50", "optimizer.lr=1e-2", "num_threads=1"]

    def begin(name: str, before: Callable[[], object] | None = None) -> int:
        overrides = [*given, f"run_dir={tmp_path / name}"]
        settings = as_mapping(with_parts(settings_with(*overrides), overrides))
        return finish(start(settings, tmp_path / "log", before=before))

    assert begin("whole") == 0, (tmp_path / "log").read_text()
    losses = [float(row["valid/loss"]) for row in metrics(tmp_path / "whole") if row["valid/loss"]]
    assert losses[-1] < losses[0]
    weights = safetensors.torch.load_file(tmp_path / "whole" / "bundle" / "weights.safetensors")
    assert {name.partition(".")[0] for name in weights} == {"encoder", "head"}
    assert all(".lora_" in name or name.startswith("head.") for name in weights)
    assert begin("parts", partial(die_at_save, 2)) == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert begin("parts") == 0, (tmp_path / "log").read_text()
    assert bundle(tmp_path / "parts") == bundle(tmp_path / "whole")


def test_blocks_that_cannot_have_a_stride_are_refused() -> None:
    config = resolved("encoder=turboctc_l", "encoder/block=conformer_block", "encoder.num_strided_layers=1")["encoder"]
    with refused(InputError, "encoder.block ... strided_block"), torch.device("meta"):
        component("encoder", config)(80)
    with torch.device("meta"):
        assert component("encoder", config | {"num_strided_layers": 0})(80).stride == 2
