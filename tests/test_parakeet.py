"""Conversion of Hugging Face's Parakeet-CTC to a bundle and back: features, texts, and every tensor."""

import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from huggingface_hub import ModelCard
from torch import Tensor
from transformers import AutoProcessor, ParakeetForCTC, pipeline

from asr.apps.convert.huggingface.config import features_config
from asr.apps.convert.huggingface.convert import from_huggingface
from asr.apps.convert.tensors import COUNTER
from asr.convert import main
from asr.core.build import build_features, build_model, build_tokenizer
from asr.core.checkpoint.bundle import Bundle, read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer, model_config
from asr.errors import InputError
from asr.export import main as export
from asr.interfaces import Tokenizer
from tests import parakeet
from tests.conftest import resolved
from tests.nemo import MODEL, needs_model
from tests.parakeet import SAMPLE_RATE, change
from tests.refusals import refused
from tests.test_convert import assert_equal, assert_refused, log_probs_of

OFF = {"attention_bias": False, "convolution_bias": False, "scale_input": False}
OPTIONS = pytest.mark.parametrize("options", [{}, OFF], ids=["with biases and scale", "without biases and scale"])


SMALL = [
    *("encoder=fast_conformer_s", "encoder.dim=16", "encoder.num_layers=2", "encoder.subsampling.num_channels=6"),
    *("features=slaney_fbank", f"features.sample_rate={SAMPLE_RATE}", "features.num_mel_bins=24", "head=ctc"),
]
SUBWORDS = ["tokenizer=sentencepiece", "tokenizer.vocab_size=33"]
TEXTS = [
    *("the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"),
    *("how vexingly quick daft zebras jump", "the five boxing wizards jump quickly"),
]


def bundle(folder: Path, *overrides: str) -> Tokenizer:
    """Write an untrained bundle in the format of our training; return its tokenizer."""
    config = resolved(*SMALL, *overrides)
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(TEXTS)
    model = parakeet.randomized(build_model(config, tokenizer, features))
    replace_bundle(folder, Bundle(model_config(config), tokenizer.files(), model.state_dict(), card=""))
    return tokenizer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return parakeet.save(tmp_path_factory.mktemp("tiny") / "parakeet")


def sound(seconds: float, seed: int = 0) -> Tensor:
    """Return noise that fades in and out, (S,)."""
    generator = torch.Generator().manual_seed(seed)
    samples = int(seconds * SAMPLE_RATE)
    return 0.2 * torch.randn(samples, generator=generator) * torch.linspace(0, 9, samples).sin()


@torch.no_grad()
def run_transformers(folder: Path, waveforms: list[Tensor]) -> tuple[list[Tensor], list[str]]:
    """Return the output of transformers' model and processor for waveforms: log_probs (T', V), and text."""
    processor = AutoProcessor.from_pretrained(folder)
    model = ParakeetForCTC.from_pretrained(folder).eval()
    arrays = [waveform.numpy() for waveform in waveforms]
    inputs = processor.feature_extractor(arrays, sampling_rate=SAMPLE_RATE, return_tensors="pt")
    logits = model(**inputs).logits
    lengths = model._get_subsampling_output_length(inputs["attention_mask"].sum(-1)).tolist()
    log_probs = [row[:length].log_softmax(-1) for row, length in zip(logits, lengths, strict=True)]
    return log_probs, [processor.tokenizer.decode(frames.argmax(-1)) for frames in log_probs]


@pytest.mark.parametrize("sizes", [{}, {"hop_length": 100, "win_length": 256}, {"win_length": 151, "feature_size": 30}])
@pytest.mark.parametrize("seconds", [1.5, 0.5001, 0.03])
def test_features_equal_those_of_parakeets_feature_extractor(sizes: dict[str, int], seconds: float) -> None:
    theirs = parakeet.feature_extractor(**sizes)
    config = {"model_type": "parakeet_ctc", "encoder_config": {"num_mel_bins": theirs.feature_size}}
    ours = build_features({"features": features_config(config, theirs.to_dict(), "zeros")})
    waveform = sound(seconds)
    expected = theirs([waveform.numpy()], sampling_rate=SAMPLE_RATE, return_tensors="pt")
    actual = ours(waveform)
    assert len(actual) == expected["attention_mask"].sum()
    # Both sides use float32: the logarithm of a bin with little energy is accurate to about 1e-5, before scaling.
    torch.testing.assert_close(actual, expected["input_features"][0, : len(actual)], rtol=0, atol=1e-4)


@OPTIONS
def test_a_model_saved_by_transformers_gives_equal_text_and_converts_back(
    options: dict[str, bool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours, back = (tmp_path / name for name in ("theirs", "ours", "back"))
    waveforms = [sound(2.0), sound(0.7, seed=1), sound(1.3, seed=2)]
    expected, texts = run_transformers(parakeet.save(theirs, **options), waveforms)
    assert all(len(text) > 4 for text in texts), "the text must not be empty"

    assert main([str(theirs), "-o", str(ours)]) == 0
    tensors = safetensors.torch.load_file(theirs / "model.safetensors")
    num_counters, num_folded = sum(name.endswith(COUNTER) for name in tensors), 0 if options else 2
    account = f"{len(tensors)} tensors: {len(tensors) - num_counters - num_folded} taken"
    assert capsys.readouterr().out.startswith(f"{ours}: theirs, {account}")
    assert "theirs, written by transformers 5." in (ours / "README.md").read_text()
    recognizer = load_recognizer(ours)
    for waveform, log_probs in zip(waveforms, expected, strict=True):
        blank_first = log_probs.roll(1, dims=1)
        torch.testing.assert_close(log_probs_of(recognizer, waveform), blank_first, rtol=0, atol=1e-3)  # float32
    assert [transcript.text for transcript in recognizer.transcribe(waveforms, sample_rate=SAMPLE_RATE)] == texts

    assert main([str(ours), "--to", "huggingface", "-o", str(back)]) == 0
    log_probs_back, texts_back = run_transformers(back, waveforms)
    assert texts_back == texts
    torch.testing.assert_close(log_probs_back, expected, rtol=0, atol=1e-3)
    assert_equal(
        safetensors.torch.load_file(back / "model.safetensors"), tensors | (recounted if options else folded)(tensors)
    )
    assert (back / "tokenizer.json").read_bytes() == (theirs / "tokenizer.json").read_bytes()
    again, before = from_huggingface(back).bundle, read_bundle(ours)
    assert (again.config, again.files) == (before.config, before.files)
    assert_equal(again.weights, before.weights)


def recounted(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the counters of batch norms, which are written back as 0."""
    return {name: torch.tensor(0) for name in tensors if name.endswith(COUNTER)}


def folded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that conversion changes: the subsampling is multiplied by 4, the square root of 16."""
    scaled = {name: 4 * tensors[name] for name in tensors if name.startswith("encoder.subsampling.linear.")}
    return scaled | recounted(tensors)


def test_the_feature_extractor_may_be_a_section_of_the_processors_config(tiny: Path, tmp_path: Path) -> None:
    """transformers 5 writes the feature extractor into processor_config.json."""
    folder = parakeet.save(tmp_path / "parakeet")
    extractor = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps({"decoder_type": "ctc", "feature_extractor": extractor}))
    actual, expected = (from_huggingface(path).bundle for path in (folder, tiny))
    assert actual.config == expected.config


def test_any_piece_may_be_the_blank(tiny: Path, tmp_path: Path) -> None:
    """Here the blank is piece 3, and the former piece 3 is the last."""
    folder = parakeet.save(tmp_path / "parakeet")
    last = json.loads((folder / "config.json").read_text())["pad_token_id"]
    change(folder / "config.json", pad_token_id=3)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    order = [*range(3), last, *range(4, last), 3]
    for name in ("ctc_head.weight", "ctc_head.bias"):
        tensors[name] = tensors[name][order]
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    third = next(name for name, number in vocab.items() if number == 3)
    vocab[third] = last
    vocab["<pad>"] = 3
    for added in tokenizer["added_tokens"]:
        added["id"] = vocab[added["content"]]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    waveform = sound(2.0)
    for path, name in ((tiny, "last"), (folder, "third")):
        assert main([str(path), "-o", str(tmp_path / name)]) == 0
    texts = [
        load_recognizer(tmp_path / name).transcribe([waveform], sample_rate=SAMPLE_RATE)[0].text
        for name in ("last", "third")
    ]
    assert texts[0] == texts[1] != ""
    assert main([str(tmp_path / "third"), "--to", "huggingface", "-o", str(tmp_path / "back")]) == 0
    assert_equal(safetensors.torch.load_file(tmp_path / "back" / "model.safetensors"), tensors | folded(tensors))


@pytest.mark.parametrize("algorithm", ["unigram", "bpe"])
def test_a_model_with_a_sentencepiece_tokenizer_is_converted_so_that_transformers_loads_it(
    algorithm: str, tmp_path: Path
) -> None:
    tokenizer = bundle(tmp_path / "ours", *SUBWORDS, f"tokenizer.algorithm={algorithm}")
    assert main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")]) == 0
    waveforms = [sound(2.0), sound(1.1, seed=1)]
    _, expected = run_transformers(tmp_path / "theirs", waveforms)
    actual = [
        transcript.text
        for transcript in load_recognizer(tmp_path / "ours").transcribe(waveforms, sample_rate=SAMPLE_RATE)
    ]
    assert actual == expected
    assert all(len(text) > 4 for text in actual)
    theirs = AutoProcessor.from_pretrained(tmp_path / "theirs").tokenizer
    for text in TEXTS:
        assert [number + 1 for number in theirs.encode(text)] == tokenizer.encode(text)


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another model": ("config", {"model_type": "another"}, "model_type ... parakeet_ctc"),
    "a new key": (
        "config",
        {"encoder_config__window": 3},
        "encoder_config.window ... not support",
    ),
    "an activation": ("config", {"encoder_config__hidden_act": "relu"}, "hidden_act; got 'relu'"),
    "a stride": ("config", {"encoder_config__subsampling_factor": 4}, "subsampling_factor; got 4"),
    "few keys and values": (
        "config",
        {"encoder_config__num_key_value_heads": 2},
        "num_key_value_heads; got 2",
    ),
    "a bias that is a text": (
        "config",
        {"encoder_config__attention_bias": "no"},
        "attention_bias ... true or false",
    ),
    "biases that the config lacks": ("config", {"encoder_config__attention_bias": False}, "linear1.bias ... has none"),
    "tensors of another size": ("config", {"encoder_config__hidden_size": 32}, "32 ... config says"),
    "no encoder": ("config", {"encoder_config": None}, "encoder_config; got None"),
    "a blank after the last piece": (
        "config",
        {"pad_token_id": 41},
        "pad_token_id; got 41",
    ),
    "a negative blank": ("config", {"pad_token_id": -1}, "pad_token_id; got -1"),
    "a head of another size": ("config", {"vocab_size": 50}, "vocab_size; got 50"),
    "other bins": ("config", {"encoder_config__num_mel_bins": 16}, "num_mel_bins; got 16"),
    "no pre-emphasis": (
        "preprocessor_config",
        {"preemphasis": 0.0},
        "preemphasis; got 0.0",
    ),
    "another FFT": (
        "preprocessor_config",
        {"n_fft": 512},
        "preprocessor.n_fft; got 512",
    ),
    "an endless window": (
        "preprocessor_config",
        {"win_length": 10**12},
        "win_length ... of samples",
    ),
    "another extractor": ("preprocessor_config", {"feature_extractor_type": "X"}, "ParakeetFeatureExtractor"),
    "a new feature": ("preprocessor_config", {"mean": 1}, "preprocessor.mean ... not support"),
    "another tokenizer model": (
        "tokenizer",
        {"model__type": "WordPiece"},
        "model.type; got 'WordPiece'",
    ),
    "dropout of the tokenizer": (
        "tokenizer",
        {"model__dropout": 0.1},
        "model.dropout; got 0.1",
    ),
    "a byte-level decoder": (
        "tokenizer",
        {"decoder": {"type": "ByteLevel"}},
        "decoder; got ByteL",
    ),
    "no pre-tokenizer": ("tokenizer", {"pre_tokenizer": None}, "tokenizer; got None"),
    "a slow regular expression": (
        "tokenizer",
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}},
        "normalizer ... (a+)+",
    ),
    "nested steps": (
        "tokenizer",
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": []}]}},
        "normalizer ... of steps",
    ),
    "no unknown piece": ("tokenizer", {"model__unk_token": None}, "model ... unknown piece"),
    "a gap in the pieces": (
        "tokenizer",
        {"model__vocab": {"<unk>": 0, "a": 7}},
        "tokenizer.json",
    ),
    "merges of absent pieces": (
        "tokenizer",
        {"model__merges": [["x", "y"]]},
        "tokenizer.json ... it is damaged",
    ),
    "a damaged map": (
        "tokenizer",
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        "tokenizer.json ... it is damaged",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_asr_does_not_support_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, settings, message = REFUSED[case]
    folder = parakeet.save(tmp_path / "parakeet")
    change(folder / f"{name}.json", **settings)
    assert_refused(folder, message, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "preprocessor_config.json", "config.json"])
@pytest.mark.parametrize("damage", ["gone", "empty", "half", "a link", "a circular link", "a folder", "a list"])
def test_a_damaged_folder_is_refused_in_one_line(name: str, damage: str, tmp_path: Path) -> None:
    folder = parakeet.save(tmp_path / "parakeet")
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if damage == "a link":
        (folder / name).symlink_to("/etc/hostname")
    elif damage == "a circular link":
        (folder / name).symlink_to(name)
    elif damage == "a folder":
        (folder / name).mkdir()
    elif damage != "gone":
        (folder / name).write_bytes({"empty": b"", "half": content[: len(content) // 2], "a list": b"[1]"}[damage])
    without_config = name == "config.json" and damage in ("gone", "a circular link")
    assert_refused(folder, "model_config.yaml" if without_config else name, tmp_path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["encoder/subsampling=strided_conv"],
            "encoder.subsampling ... depthwise_conv ... encoder=fast_conformer_*",
        ),
        (["tokenizer=char"], "tokenizer; got 'char'"),
        (["features.num_mel_bins=20"], "features.num_mel_bins; got 20"),
        (["features.pad_mode=reflect"], "features.pad_mode; got reflect"),
        (
            ["encoder.block.feed_forward_bias=false"],
            "encoder.block.feed_forward_bias; got false",
        ),
    ],
)
def test_a_model_that_parakeet_cannot_represent_is_refused(overrides: list[str], message: str, tmp_path: Path) -> None:
    bundle(tmp_path / "ours", *([] if "tokenizer=char" in overrides else SUBWORDS), *overrides)
    with refused(InputError, message):
        main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")])
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_a_folder_with_other_files_is_not_replaced(tiny: Path, tmp_path: Path) -> None:
    assert main([str(tiny), "-o", str(tmp_path / "ours")]) == 0
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.tex").touch()
    with refused(InputError, "contains ... thesis.tex"):
        main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")])
    (tmp_path / "theirs" / "thesis.tex").unlink()
    for _ in range(2):
        assert main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")]) == 0


# ---- a folder to publish

RESULTS = {
    "test-clean": {"wer": 0.0264, "wer_interval": [0.019, 0.0341], "reference_words": 1816, "normalizer": "basic"},
    "silence": {"wer": float("nan"), "wer_interval": None, "reference_words": 0, "normalizer": "basic"},
}


def test_an_export_for_transformers_loads_as_a_pipeline_and_has_a_card_that_the_hub_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, folder = tmp_path / "run", tmp_path / "mine"
    bundle(run / "bundle", *SUBWORDS)
    (run / "results.json").write_text(json.dumps(RESULTS))
    options = ["--to", "huggingface", "--language", "en", "--license", "cc-by-4.0"]
    for model in (run, run / "bundle"):
        assert export([str(model), "-o", str(folder), *options]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"hf upload OWNER/mine {folder}"

    waveform = sound(2.0)
    [expected] = load_recognizer(run).transcribe([waveform], sample_rate=SAMPLE_RATE)
    assert len(expected.text) > 4
    recognize = pipeline("automatic-speech-recognition", model=str(folder))
    text = recognize({"raw": waveform.numpy(), "sampling_rate": SAMPLE_RATE})["text"].strip()
    assert text.startswith(expected.text), "the pipeline also decodes the frame of padding after the end"
    assert run_transformers(folder, [waveform])[1] == [expected.text]

    card = ModelCard.load(folder / "README.md")
    about = card.data.to_dict()
    assert {key: about[key] for key in ("language", "license", "library_name", "pipeline_tag", "metrics")} == {
        "language": "en",
        "license": "cc-by-4.0",
        "library_name": "transformers",
        "pipeline_tag": "automatic-speech-recognition",
        "metrics": ["wer"],
    }
    [result] = card.data.eval_results
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("test-clean", "wer", 2.64)
    assert "| test-clean | 2.64 | 1.90 to 3.41 | 1,816 |" in card.content


def test_a_card_contains_only_known_facts(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tiny), "-o", str(tmp_path / "ours"), "--source", "Trained by nobody."]) == 0
    assert main([str(tmp_path / "ours"), "-o", str(tmp_path / "theirs"), "--to", "huggingface"]) == 0
    capsys.readouterr()
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "theirs"), "--to", "huggingface"]) == 0
    message = "README.md has no language and no license: give --language and --license if known."
    assert capsys.readouterr().out.splitlines()[1] == message
    card = ModelCard.load(tmp_path / "theirs" / "README.md")
    assert {"language", "license", "metrics", "model-index"}.isdisjoint(card.data.to_dict())
    assert "> Trained by nobody." in card.content
    assert "Word error rate" not in card.content


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--language", "en"], "--language ... --to"),
        (
            ["--to", "huggingface", "--quantize", "int8"],
            "--quantize ... --to",
        ),
        (["--to", "huggingface", "--license", "Mine: all"], "--license ... be a short"),
        (["--to", "huggingface"], "encoder.subsampling ... depthwise_conv"),
    ],
)
def test_a_model_that_cannot_be_exported_for_transformers_is_reported_in_one_line(
    options: list[str], message: str, tmp_path: Path
) -> None:
    bundle(tmp_path / "ours", *SUBWORDS, "encoder/subsampling=strided_conv")
    with refused(InputError, message):
        export([str(tmp_path / "ours"), "-o", str(tmp_path / "theirs"), *options])
    assert not (tmp_path / "theirs").exists()


@needs_model
@pytest.mark.slow
def test_the_trained_conformer_cannot_become_a_parakeet(tmp_path: Path) -> None:
    assert main([str(MODEL), "-o", str(tmp_path / "ours")]) == 0
    with refused(InputError, "encoder.subsampling", got="strided_conv"):
        export([str(tmp_path / "ours"), "-o", str(tmp_path / "theirs"), "--to", "huggingface"])
