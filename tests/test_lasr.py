"""Conversion of transformers' LASR (MedASR) to a bundle and back: features, logits, texts, and every tensor."""

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import (
    AutoProcessor,
    LasrCTCConfig,
    LasrEncoderConfig,
    LasrFeatureExtractor,
    LasrForCTC,
    LasrProcessor,
    LasrTokenizer,
)

from asr.apps.convert.huggingface.convert import from_huggingface, to_huggingface
from asr.apps.zoo.lasr import encoder_config, features_config
from asr.convert import main
from asr.core.build import build_features
from asr.core.checkpoint.bundle import Bundle, read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.export import main as export
from asr.lengths import padding_mask
from asr.merge import main as merge
from asr.train import train
from tests.conftest import SHARED, TINY, resolved, settings_with, tone_corpus
from tests.parakeet import DAMAGES, change, damage, randomized
from tests.processes import metrics
from tests.refusals import refused
from tests.test_convert import assert_equal, assert_refused
from tests.tones import PITCHES

SAMPLE_RATE, BINS = 16_000, 128
SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "subsampling_conv_channels": 6,
}
SPECIAL = ("<epsilon>", "<s>", "</s>", "<unk>")  # the first pieces of the published tokenizer
PIECES = (" ", *"abcdefghijk", " a", " b", "ab", " ab", "B", "{period}")
BLANK, END, UNKNOWN = (SPECIAL.index(name) for name in ("<epsilon>", "</s>", "<unk>"))
VOCAB_SIZE = len(SPECIAL) + len(PIECES)
FORMS: dict[str, dict[str, Any]] = {
    "published": {},
    "other settings": {
        "conv_kernel_size": 5,
        "attention_bias": True,
        "convolution_bias": True,
        "layer_norm_eps": 1e-3,
        "feed_forward_residual_weights": [0.7, -1.25],
        "conv_residual_weights": [0.9, 0.4],
        "batch_norm_momentum": 0.2,
        "num_attention_heads": 3,
    },
}
EACH_FORM = pytest.mark.parametrize("options", FORMS.values(), ids=FORMS)
FRAMES = [*range(13, 24), 90, 133, 1301]


def save(folder: Path, extra_ids: int = 100, **options: Any) -> Path:
    """Save a tiny model with random weights as transformers does, with a tokenizer and a feature extractor."""
    encoder = LasrEncoderConfig(**SMALL | options)
    model = randomized(LasrForCTC(LasrCTCConfig(vocab_size=VOCAB_SIZE, encoder_config=encoder)))
    with torch.no_grad():
        model.ctc_head.weight *= 4.0
        model.ctc_head.bias[BLANK] -= 2.0
        model.ctc_head.bias[[END, UNKNOWN]] += 4.0
    model.save_pretrained(folder)
    return with_processor(folder, extra_ids)


def with_processor(folder: Path, extra_ids: int = 100) -> Path:
    scores = [(name, 0.0) for name in SPECIAL]
    scores += [(piece.replace(" ", "▁"), -len(PIECES) / len(piece)) for piece in PIECES]
    tokenizer = LasrTokenizer(vocab=scores, bos_token="<s>", pad_token="<epsilon>", extra_ids=extra_ids)
    LasrProcessor(LasrFeatureExtractor(), tokenizer).save_pretrained(folder)
    return folder


def sound(seconds: float, seed: int = 0) -> Tensor:
    """Return noise that fades in and out, (S,)."""
    generator = torch.Generator().manual_seed(seed)
    samples = int(seconds * SAMPLE_RATE)
    return 0.2 * torch.randn(samples, generator=generator) * torch.linspace(0, 9, samples).sin()


def loaded(folder: Path) -> Any:
    return LasrForCTC.from_pretrained(folder, attn_implementation="sdpa").eval()  # eager: softmax in float32


def in_float64(folder: Path) -> Any:
    """Load a model in float64; transformers computes the angles of its positions in float32 even then."""
    model = loaded(folder).double()
    rotary = model.encoder.rotary_emb
    size = 2 * len(rotary.inv_freq)

    def angles(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = 10_000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        both = (position_ids[..., None] * frequencies).repeat(1, 1, 2)
        return both.cos(), both.sin()

    rotary.forward = angles
    return model


@torch.no_grad()
def logits_of(folder: Path, waveform: Tensor) -> Tensor:
    """Return transformers' logits of a recording alone, (T', V)."""
    inputs = LasrFeatureExtractor()(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    logits: Tensor = loaded(folder)(**inputs).logits[0]
    return logits


@EACH_FORM
@torch.no_grad()
def test_logits_of_a_batch_equal_those_of_transformers_for_each_recording_alone_and_in_a_batch(
    options: dict[str, Any], tmp_path: Path
) -> None:
    folder = save(tmp_path / "theirs", **options)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    model, theirs = load_recognizer(tmp_path / "ours").model.double().eval(), in_float64(folder)
    lengths = torch.tensor([*FRAMES, 12])
    features = torch.randn(len(lengths), max(FRAMES) + 3, BINS, dtype=torch.float64)
    padding = padding_mask(lengths, features.shape[1])
    encoded = model(features.masked_fill(padding[:, :, None], math.nan), lengths)
    log_probs = model.head.frame_head.log_probs(encoded.out)
    together = theirs(input_features=features, attention_mask=~padding).logits.log_softmax(-1)
    for row, frames in enumerate(FRAMES):
        expected = theirs(input_features=features[row : row + 1, :frames]).logits[0].log_softmax(-1)
        assert int(encoded.lengths[row]) == len(expected) == model.encoder.output_lengths(frames)
        for reference in (expected, together[row, : len(expected)]):
            torch.testing.assert_close(log_probs[row, : len(expected)], reference, rtol=0, atol=1e-10)
    assert int(encoded.lengths[-1]) == model.encoder.output_lengths(12) == 0


@pytest.mark.parametrize("seconds", [0.0249, 0.025, 0.0651, 0.5001, 1.5])
def test_features_equal_those_of_transformers_extractor(seconds: float) -> None:
    extractor, waveform = LasrFeatureExtractor(), sound(seconds)
    ours = build_features({"features": features_config({}, extractor.to_dict())})(waveform)
    if seconds < 0.025:  # shorter than a window, which transformers does not accept
        assert len(ours) == 0
        return
    [theirs] = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")["input_features"]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)


def test_a_recording_shorter_than_an_encoder_frame_has_no_text(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    recognizer = load_recognizer(tmp_path / "ours")
    for seconds in (0.01, 0.03, 0.14):
        assert recognizer.transcribe(sound(seconds), sample_rate=SAMPLE_RATE).text == ""


@EACH_FORM
@pytest.mark.parametrize("extra_ids", [0, 100])
def test_a_model_saved_by_transformers_gives_equal_texts_and_converts_back(
    options: dict[str, Any], extra_ids: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours, back = save(tmp_path / "theirs", extra_ids, **options), tmp_path / "ours", tmp_path / "back"
    waveforms = [sound(3.0), sound(1.3, seed=1), sound(2.013, seed=2)]
    logits = [logits_of(theirs, waveform) for waveform in waveforms]
    tokens = [frames.argmax(-1) for frames in logits]
    assert {END, UNKNOWN} & set(torch.cat(tokens).tolist())  # pieces that texts leave out
    decode = AutoProcessor.from_pretrained(theirs).batch_decode
    texts = [" ".join(text.split()) for text in decode(tokens, skip_special_tokens=True)]
    assert any(len(text) > 1 for text in texts), texts

    assert main([str(theirs), "-o", str(ours)]) == 0
    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    assert f"{len(tensors)} tensors: {len(tensors) - 2} taken, 2 not needed" in capsys.readouterr().out
    recognizer = load_recognizer(ours)
    assert [each.text for each in recognizer.transcribe(waveforms, sample_rate=SAMPLE_RATE)] == texts

    assert main([str(ours), "--to", "huggingface", "-o", str(back)]) == 0
    for waveform, expected in zip(waveforms, logits, strict=True):
        assert torch.equal(logits_of(back, waveform), expected)
    assert_equal(safetensors.torch.load_file(back / "model.safetensors"), tensors)
    processor = AutoProcessor.from_pretrained(back)
    assert (type(processor), type(processor.tokenizer)) == (LasrProcessor, LasrTokenizer)
    assert processor.batch_decode(tokens) == AutoProcessor.from_pretrained(theirs).batch_decode(tokens)
    again, before = from_huggingface(back).bundle, read_bundle(ours)
    assert (again.config, again.files) == (before.config, before.files)
    assert_equal(again.weights, before.weights)


# google/medasr as published (transformers 5.0.0.dev0): two files for the feature extractor, with other class names.
EXTRACTOR = {
    "feature_size": 128,
    "hop_length": 160,
    "n_fft": 512,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": True,
    "sampling_rate": 16_000,
    "win_length": 400,
}
PREPROCESSOR = {"feature_extractor_type": "LASRFeatureExtractor", "processor_class": "LASRProcessor", **EXTRACTOR}
PROCESSOR = {
    "feature_extractor": {
        "feature_extractor_type": "LasrFeatureExtractor",
        "processor_class": "LasrProcessor",
        **EXTRACTOR,
    },
    "processor_class": "LasrProcessor",
}


def as_published(folder: Path) -> Path:
    """Give a folder the files of google/medasr, and its added tokens after those of the head."""
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    (folder / "processor_config.json").write_text(json.dumps(PROCESSOR))
    config = json.loads((folder / "config.json").read_text())
    del config["architectures"]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    last = max(token["id"] for token in tokenizer["added_tokens"])
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"].append({"id": last + 1, "content": "<pad>", **plain})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_the_files_of_the_published_model_are_read_and_those_of_today_give_the_same_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    today, published = save(tmp_path / "today"), as_published(save(tmp_path / "published"))
    bundles = []
    for folder in (today, published):
        assert main([str(folder), "-o", str(tmp_path / f"{folder.name} ours")]) == 0
        bundles.append(read_bundle(tmp_path / f"{folder.name} ours"))
    assert bundles[0].config == bundles[1].config
    assert bundles[0].files == bundles[1].files
    assert bundles[0].weights.keys() == bundles[1].weights.keys()
    counts = [line for line in capsys.readouterr().out.splitlines() if "left out of tokenizer.json" in line]
    assert [line.split()[0] for line in counts] == ["100", "101"]


@pytest.mark.parametrize("name", ["config", "preprocessor_config", "processor_config"])
def test_the_published_files_are_those_of_this_test(name: str) -> None:
    """The files are those of the hub bit for bit: see the README of the folder."""
    folder = SHARED.parent / "models" / "published_2" / "medasr"
    if not folder.is_dir():
        pytest.skip("needs ../shared/models/published_2")
    content = json.loads((folder / f"{name}.json").read_text())
    if name == "config":
        encoder_config(content)
        assert "architectures" not in content
    else:
        assert content == {"preprocessor_config": PREPROCESSOR, "processor_config": PROCESSOR}[name]
        assert features_config({}, content.get("feature_extractor", content))["name"] == "hann_fbank"


def test_the_section_of_the_processor_is_used_rather_than_an_older_file(tmp_path: Path) -> None:
    folder = as_published(save(tmp_path / "theirs"))
    (folder / "preprocessor_config.json").write_text(json.dumps({"auto_map": {"AutoProcessor": "a.B"}, "n_mels": 80}))
    from_huggingface(folder)
    processor = json.loads((folder / "processor_config.json").read_text())
    processor["feature_extractor"]["n_fft"] = 1024
    (folder / "processor_config.json").write_text(json.dumps(processor))
    with refused(InputError, "n_fft", got=1024):
        from_huggingface(folder)


def test_texts_are_encoded_as_by_transformers_tokenizer(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    ours, theirs = load_recognizer(tmp_path / "ours").model.tokenizer, LasrTokenizer.from_pretrained(folder)
    for text in ("a", "abc cab", "ab B {period} ab"):
        tokens = theirs.encode(text, add_special_tokens=False)  # the blank is 0 in both
        assert ours.encode(text) == tokens
        assert ours.decode(tokens) == text
    with pytest.raises(InputError):
        ours.encode("x")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a new key": ("config", {"window": 3}, "config.window ... not support"),
    "a new key of the encoder": ("encoder", {"head_dim": 4}, "encoder_config.head_dim ... not support"),
    "another encoder": ("encoder", {"model_type": "parakeet_encoder"}, "model_type; got 'parakeet_encoder'"),
    "no mapping": ("config", {"encoder_config": 3}, "encoder_config; got 3"),
    "an activation": ("encoder", {"hidden_act": "relu"}, "hidden_act; got 'relu'"),
    "another kernel": ("encoder", {"subsampling_conv_kernel_size": 3}, "subsampling_conv_kernel_size; got 3"),
    "another stride": ("encoder", {"subsampling_conv_stride": 4}, "subsampling_conv_stride; got 4"),
    "shared keys": ("encoder", {"num_key_value_heads": 1}, "num_key_value_heads; got 1"),
    "scaled positions": ("encoder", {"rope_parameters": {"rope_type": "linear"}}, "rope_type; got 'linear'"),
    "other angles": ("encoder", {"rope_parameters": {"rope_theta": 500}}, "rope_theta; got 500"),
    "a part of the rotation": (
        "encoder",
        {"rope_parameters": {"partial_rotary_factor": 0.5}},
        "rope_parameters.partial_rotary_factor ... not support",
    ),
    "positions that are a list": ("encoder", {"rope_parameters": [1]}, "rope_parameters; got [1]"),
    "three weights": ("encoder", {"conv_residual_weights": [1, 1, 1]}, "convolution_weights; got [1, 1, 1]"),
    "weights that are no numbers": ("encoder", {"feed_forward_residual_weights": ["1", 1]}, "feed_forward_weights"),
    "an infinite weight": ("encoder", {"feed_forward_residual_weights": [1e999, 1]}, "feed_forward_weights"),
    "a negative eps": ("encoder", {"layer_norm_eps": -1}, "encoder.block.eps; got -1"),
    "a momentum": ("encoder", {"batch_norm_momentum": None}, "encoder.block.norm.momentum; got None"),
    "a bias that is a number": ("encoder", {"attention_bias": 1}, "bias; got 1"),
    "dropout of everything": ("encoder", {"activation_dropout": 1.0}, "encoder.block.dropout; got 1.0"),
    "a wide kernel": ("encoder", {"conv_kernel_size": 10**9}, "encoder.block.convolution.kernel_size"),
    "a billion layers": ("encoder", {"num_hidden_layers": 10**9}, "num_layers"),
    "a negative size": ("encoder", {"hidden_size": -24}, "encoder.dim; got -24"),
    "many heads": ("encoder", {"num_attention_heads": 10**9, "num_key_value_heads": 10**9}, "num_heads"),
    "an odd number of channels": ("encoder", {"num_attention_heads": 8, "num_key_value_heads": 8}, "even"),
    "tensors of another size": ("encoder", {"hidden_size": 32}, "32 ... config says"),
    "a missing layer": ("encoder", {"num_hidden_layers": 3}, "encoder.layers.2 ... missing"),
    "a layer too many": ("encoder", {"num_hidden_layers": 1}, "encoder.layers.1 ... none"),
    "a blank after the last piece": ("config", {"pad_token_id": VOCAB_SIZE}, f"pad_token_id; got {VOCAB_SIZE}"),
    "no size of the head": ("config", {"vocab_size": None}, "vocab_size; got null"),
    "a large head": ("config", {"vocab_size": 10**12}, "vocab_size"),
    "a head of another size": ("config", {"vocab_size": 5}, "vocab_size"),
    "other bins": ("features", {"feature_size": 40}, "num_mel_bins ... 40; got 128"),
    "another extractor": ("features", {"feature_extractor_type": "X"}, "LasrFeatureExtractor; got 'X'"),
    "a new feature": ("features", {"preemphasis": 0.97}, "preprocessor.preemphasis ... not support"),
    "no samples": ("features", {"sampling_rate": 0}, "got 400"),
    "a telephone": ("features", {"sampling_rate": 8000}, "features.sample_rate; got 8000"),
    "no window": ("features", {"win_length": 0}, "win_length; got 0"),
    "another transform": ("features", {"n_fft": 1024}, "n_fft; got 1024"),
    "words": ("tokenizer", {"model": {"type": "WordLevel", "vocab": {"a": 1}, "unk_token": "a"}}, "tokenizer.json"),
    "another split": ("tokenizer", {"pre_tokenizer": {"type": "Sequence", "pretokenizers": 3}}, "pre_tokenizer"),
    "added tokens that are no list": ("tokenizer", {"added_tokens": 3}, "tokenizer.json"),
}
SECTIONS = {"encoder": ("config", "encoder_config"), "features": ("processor_config", "feature_extractor")}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_asr_does_not_support_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, settings, message = REFUSED[case]
    folder = save(tmp_path / "theirs")
    file, section = SECTIONS.get(name, (name, ""))
    content = json.loads((folder / f"{file}.json").read_text())
    change(folder / f"{file}.json", **{section: content[section] | settings} if section else settings)
    assert_refused(folder, message, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "processor_config.json"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(name: str, how: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    damage(folder / name, how)
    assert_refused(folder, name, tmp_path)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    name = "encoder.layers.0.norm_out.bias"
    safetensors.torch.save_file(tensors | {name: torch.zeros(24)}, folder / "model.safetensors")
    assert_refused(folder, f"{name} has none", tmp_path)


@pytest.mark.parametrize(("options", "message"), [(["--pad-mode", "reflect"], "--pad-mode"), (["--texts"], "--texts")])
def test_options_that_do_not_fit_the_model_are_refused(options: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}\n')
    given = [*options, str(tmp_path / "train.jsonl")] if options == ["--texts"] else options
    with refused(InputError, message):
        main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours"), *given])


def test_the_config_of_transformers_may_lack_settings_with_default_values(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    whole = from_huggingface(folder).bundle.config
    config = json.loads((folder / "config.json").read_text())
    defaults = LasrEncoderConfig().to_dict()
    of_encoder = {key: value for key, value in config["encoder_config"].items() if value != defaults[key]}
    (folder / "config.json").write_text(
        json.dumps({"model_type": "lasr_ctc", "vocab_size": VOCAB_SIZE, "encoder_config": of_encoder})
    )
    assert from_huggingface(folder).bundle.config == whole


TRAINING = {  # settings that transformers' output does not depend on
    *("attention_dropout", "dropout_positions", "initializer_range", "layerdrop", "max_position_embeddings"),
    *("ctc_loss_reduction", "ctc_zero_infinity", "architectures", "dtype", "transformers_version"),
    *("padding_side", "padding_value", "return_attention_mask"),
}


def other(value: Any) -> Any:
    """Return another value of the same kind."""
    match value:
        case bool():
            return not value
        case int() | float():
            return 2 * value + 1
        case str():
            return f"x{value}"
        case list():
            return [*map(other, value)]
        case dict():
            return {key: other(entry) for key, entry in value.items()}
    return 3


def test_every_setting_of_a_folder_changes_the_model_or_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    before = from_huggingface(folder).bundle.config
    for file, section in (("config", ""), *SECTIONS.values()):
        path = folder / f"{file}.json"
        original = path.read_text()
        content = json.loads(original)
        settings = content[section] if section else content
        assert settings
        for key, value in settings.items():
            changed = settings | {key: other(value)}
            path.write_text(json.dumps(content | {section: changed} if section else changed))
            with contextlib.suppress(InputError):
                assert from_huggingface(folder).bundle.config != before or key in TRAINING, key
        path.write_text(original)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["encoder/block/attention=relative_attention"], "encoder.block.attention"),
        (["encoder/block/convolution=depthwise_convolution"], "encoder.block.convolution"),
        (["encoder.block.feed_forward_bias=true"], "encoder.block.attention.bias"),
        (["encoder.block.norm.eps=1e-3"], "encoder.block.norm.eps"),
        (["features=fbank"], "features; got 'fbank'"),
        (["features/normalize=utterance_cmvn"], "features.normalize"),
        (["head=ctc_self_conditioned"], "head; got 'ctc_self_conditioned'"),
    ],
)
def test_a_bundle_with_a_part_that_lasr_lacks_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    config = resolved("encoder=medasr_l", "head=ctc", *overrides)
    bundle = Bundle({name: config[name] for name in ("features", "encoder", "head")}, {}, {}, card="")
    with refused(InputError, message):
        to_huggingface(bundle, tmp_path)


def test_a_run_folder_becomes_a_folder_for_the_hub_whose_card_names_the_model(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "hub"), "--to", "huggingface"]) == 0
    assert "LasrForCTC" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.slow
def test_an_exported_model_has_the_texts_of_the_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "onnx")]) == 0
    assert "texts are equal" in capsys.readouterr().out
    models = [load_recognizer(tmp_path / name) for name in ("ours", "onnx")]
    for seconds in (3.0, 0.14, 0.155):
        texts = [model.transcribe(sound(seconds), sample_rate=SAMPLE_RATE).text for model in models]
        assert texts[0] == texts[1]
        assert (texts[0] != "") is (seconds == 3.0)


@pytest.mark.slow
@torch.no_grad()
def test_the_published_size_gives_the_log_probs_of_transformers(tmp_path: Path) -> None:
    """The default config of transformers, with 105 million random parameters."""
    folder = tmp_path / "theirs"
    torch.manual_seed(0)
    model = LasrForCTC(LasrCTCConfig(vocab_size=VOCAB_SIZE)).eval()
    assert round(sum(map(torch.numel, model.parameters())) / 1e6) == 105
    model.save_pretrained(folder)
    del model
    with_processor(folder)
    waveform = sound(12.0)
    expected = logits_of(folder, waveform).log_softmax(-1)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    model = load_recognizer(tmp_path / "ours").model
    features = model.features(waveform)
    encoded = model(features[None], torch.tensor([len(features)]))
    log_probs = model.head.frame_head.log_probs(encoded.out)[0]
    torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_fifty_steps_train_an_adapter_that_can_be_merged_and_converted_back(fluent: Path, tmp_path: Path) -> None:
    assert set(PITCHES) <= set(PIECES)
    small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "subsampling_conv_channels": 32}
    folder, ours, run_dir = save(tmp_path / "theirs", **small), tmp_path / "ours", tmp_path / "run"
    assert main([str(folder), "-o", str(ours)]) == 0
    short = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
    given = [*short, *tone_corpus(fluent), f"init.from={ours}", f"run_dir={run_dir}", "adapter=lora"]
    given += ["adapter.trained=[head.*]", "trainer.max_steps=50", "trainer.max_epochs=50", "optimizer.lr=1e-2"]
    train(with_parts(settings_with(*given), given))
    losses = [float(row["valid/loss"]) for row in metrics(run_dir) if row["valid/loss"]]
    assert losses[-1] < losses[0]
    assert merge([str(run_dir / "bundle"), "--base", str(ours), "-o", str(tmp_path / "merged")]) == 0
    assert main([str(tmp_path / "merged"), "--to", "huggingface", "-o", str(tmp_path / "back")]) == 0
    assert loaded(tmp_path / "back").config.encoder_config.hidden_size == 64
