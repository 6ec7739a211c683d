"""Conversion of transformers' w2v-BERT 2.0 to a bundle and back: features, logits, texts, and every tensor."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import (
    SeamlessM4TFeatureExtractor,
    Wav2Vec2BertConfig,
    Wav2Vec2BertForCTC,
    Wav2Vec2BertModel,
    Wav2Vec2CTCTokenizer,
)

from asr.apps.convert.huggingface.convert import from_huggingface
from asr.apps.zoo.encoder.block.attention.shaw_attention import ShawAttention
from asr.apps.zoo.wav2vec2_bert import MASK, features_config
from asr.base.text.normalize import basic
from asr.convert import main
from asr.core.build import build_features
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.export import main as export
from asr.lengths import padding_mask
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.parakeet import DAMAGES, change, damage, randomized
from tests.processes import metrics
from tests.refusals import refused
from tests.test_convert import assert_equal, assert_refused

SAMPLE_RATE, BINS = 16_000, 80
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "left_max_position_embeddings": 5,
    "right_max_position_embeddings": 2,
    "conv_depthwise_kernel_size": 5,
}
IDS = {"[UNK]": 0, "b": 1, "|": 2, "é": 3, "[PAD]": 4, "a": 5, "c": 6, "</s>": 7, "<s>": 8, "'": 9}  # in any order
BLANK = IDS["[PAD]"]
ADAPTERS: dict[str, dict[str, Any]] = {
    "no adapter": {},
    "two adapters": {"add_adapter": True, "num_adapter_layers": 2},
}
EACH_ADAPTER = pytest.mark.parametrize("options", ADAPTERS.values(), ids=ADAPTERS)
FRAMES = [*range(2, 12), 90, 133]


def save(folder: Path, **options: Any) -> Path:
    """Save a tiny model with random weights as transformers does, with a tokenizer and a feature extractor."""
    folder.mkdir(parents=True, exist_ok=True)
    config = Wav2Vec2BertConfig(**SMALL | options, vocab_size=len(IDS), pad_token_id=BLANK)
    model = randomized(Wav2Vec2BertForCTC(config))
    with torch.no_grad():
        model.lm_head.weight *= 4.0
        model.lm_head.bias[BLANK] -= 2.0
    model.save_pretrained(folder)
    return with_tokenizer(folder)


def with_tokenizer(folder: Path) -> Path:
    (folder / "ids.json").write_text(json.dumps(IDS, ensure_ascii=False))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "ids.json"), unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(folder)
    SeamlessM4TFeatureExtractor().save_pretrained(folder)
    (folder / "ids.json").unlink()
    return folder


def save_pretrained_only(folder: Path, **options: Any) -> Path:
    """Save a tiny model without head and tokenizer."""
    randomized(Wav2Vec2BertModel(Wav2Vec2BertConfig(**SMALL | options))).save_pretrained(folder)
    SeamlessM4TFeatureExtractor().save_pretrained(folder)
    return folder


def sound(seconds: float, seed: int = 0) -> Tensor:
    """Return noise that fades in and out, (S,)."""
    generator = torch.Generator().manual_seed(seed)
    samples = int(seconds * SAMPLE_RATE)
    return 0.2 * torch.randn(samples, generator=generator) * torch.linspace(0, 9, samples).sin()


def blank_first(logits: Tensor) -> Tensor:
    order = [BLANK, *(number for number in range(logits.shape[-1]) if number != BLANK)]
    return logits[..., order]


@torch.no_grad()
def logits_of(folder: Path, waveform: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return transformers' logits of a recording alone, (T', V)."""
    model = Wav2Vec2BertForCTC.from_pretrained(folder).to(dtype).eval()
    extractor = SeamlessM4TFeatureExtractor.from_pretrained(folder)
    inputs = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    frames = int(inputs["attention_mask"].sum())
    logits: Tensor = model(input_features=inputs["input_features"][:, :frames].to(dtype)).logits[0]
    return logits


def spelled(logits: Tensor) -> str:
    """Return the greedy text of logits without special pieces."""
    names = {number: name for name, number in IDS.items()}
    tokens = logits.argmax(-1).unique_consecutive().tolist()
    letters = [names[token] for token in tokens if len(names[token]) == 1]
    return " ".join("".join(letters).replace("|", " ").split())


@EACH_ADAPTER
@torch.no_grad()
def test_logits_of_a_batch_equal_those_of_transformers_for_each_recording_alone(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """transformers' adapter reads padded frames of a batch, so the truth is the recording alone."""
    folder = save(tmp_path / "theirs", **options)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    model = load_recognizer(tmp_path / "ours").model.double().eval()
    theirs: Any = Wav2Vec2BertForCTC.from_pretrained(folder).double().eval()
    lengths = torch.tensor(FRAMES)
    features = torch.randn(len(FRAMES), max(FRAMES) + 3, BINS, dtype=torch.float64)
    padded = features.masked_fill(padding_mask(lengths, features.shape[1])[:, :, None], math.nan)
    encoded = model(padded, lengths)
    log_probs = model.head.frame_head.log_probs(encoded.out)
    for row, frames in enumerate(FRAMES):
        pairs = features[row : row + 1, : frames // 2 * 2].unflatten(1, (-1, 2)).flatten(2)
        expected = blank_first(theirs(input_features=pairs).logits[0]).log_softmax(-1)
        assert int(encoded.lengths[row]) == len(expected) == model.encoder.output_lengths(frames)
        torch.testing.assert_close(log_probs[row, : len(expected)], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seconds", [0.045, 0.0651, 0.5001, 1.5])
def test_features_equal_those_of_transformers_extractor(seconds: float) -> None:
    extractor, waveform = SeamlessM4TFeatureExtractor(), sound(seconds)
    ours = build_features({"features": features_config({}, extractor.to_dict())})(waveform)
    theirs = extractor(waveform.numpy(), sampling_rate=SAMPLE_RATE, return_tensors="pt")
    pairs = theirs["input_features"][0, : int(theirs["attention_mask"].sum())]
    assert len(ours) // 2 == len(pairs) > 0
    torch.testing.assert_close(ours[: 2 * len(pairs)], pairs.unflatten(1, (2, BINS)).flatten(0, 1), rtol=0, atol=1e-3)


def test_a_recording_shorter_than_an_encoder_frame_has_no_text(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    recognizer = load_recognizer(tmp_path / "ours")
    assert [recognizer.transcribe(sound(seconds), sample_rate=SAMPLE_RATE).text for seconds in (0.01, 0.03)] == ["", ""]


@EACH_ADAPTER
def test_a_model_saved_by_transformers_gives_equal_texts_and_converts_back(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours, back = save(tmp_path / "theirs", **options), tmp_path / "ours", tmp_path / "back"
    waveforms = [sound(3.0), sound(1.3, seed=1), sound(2.013, seed=2)]
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
    kept = {name: tensor for name, tensor in tensors.items() if not name.endswith(MASK)}
    assert_equal(safetensors.torch.load_file(back / "model.safetensors"), kept)
    tokenizer = Wav2Vec2CTCTokenizer.from_pretrained(back)
    assert {name: tokenizer.convert_tokens_to_ids(name) for name in IDS} == IDS
    assert tokenizer.decode(logits[0].argmax(-1)) == Wav2Vec2CTCTokenizer.from_pretrained(theirs).decode(
        logits[0].argmax(-1)
    )
    again, before = from_huggingface(back).bundle, read_bundle(ours)
    assert (again.config, again.files) == (before.config, before.files)
    assert_equal(again.weights, before.weights)


def test_texts_are_encoded_as_by_transformers_tokenizer(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    ours, theirs = load_recognizer(tmp_path / "ours").model.tokenizer, Wav2Vec2CTCTokenizer.from_pretrained(folder)
    for text in ("a", "abc cab", "c'é a a"):
        tokens = [number + 1 if number < BLANK else number for number in theirs.encode(text)]
        assert ours.encode(text) == tokens
        assert ours.decode(tokens) == text
    with pytest.raises(InputError):
        ours.encode("x")


def test_a_tokenizer_that_lowers_its_capital_letters_has_small_letters(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    change(folder / "tokenizer_config.json", do_lower_case=True)
    capital = {name.upper() if len(name) == 1 else name: number for name, number in IDS.items()}
    (folder / "vocab.json").write_text(json.dumps(capital))
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    tokenizer = load_recognizer(tmp_path / "ours").model.tokenizer
    assert tokenizer.decode(tokenizer.encode("c'é a")) == "c'é a"


def test_a_folder_without_a_config_of_the_tokenizer_has_the_special_pieces_of_transformers_defaults(
    tmp_path: Path,
) -> None:
    folder = save(tmp_path / "theirs")
    names = {"[UNK]": "<unk>", "[PAD]": "<pad>"}
    (folder / "vocab.json").write_text(json.dumps({names.get(name, name): number for name, number in IDS.items()}))
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        (folder / name).unlink(missing_ok=True)
    theirs = Wav2Vec2CTCTokenizer.from_pretrained(folder)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    ours = load_recognizer(tmp_path / "ours").model.tokenizer
    special = {IDS[name] for name in ("<s>", "</s>", "[UNK]", "[PAD]")}
    assert {theirs.convert_ids_to_tokens(number) for number in special} == {"<s>", "</s>", "<unk>", "<pad>"}
    assert sum(piece == "" for piece in ours.pieces) == len(special)


def test_special_and_added_pieces_may_stand_in_the_files_of_older_versions(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    (folder / "tokenizer_config.json").unlink()
    renamed = {"[UNK]": "?U?", "[PAD]": "?P?"}
    own = {renamed.get(name, name): number for name, number in IDS.items() if name not in ("<s>", "</s>")}
    files = {
        "vocab": own,
        "special_tokens_map": {"unk_token": "?U?", "pad_token": {"content": "?P?", "special": True}},
        "added_tokens": {name: IDS[name] for name in ("<s>", "</s>")},
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    tokenizer = load_recognizer(tmp_path / "ours").model.tokenizer
    assert {"<s>", "</s>", "?U?"} <= {*tokenizer.names}
    assert sum(piece == "" for piece in tokenizer.pieces) == 4


def test_ids_without_a_name_are_hidden(tmp_path: Path) -> None:
    """Some published heads have rows for pieces that their vocab.json does not list."""
    folder = save(tmp_path / "theirs")
    change(folder / "tokenizer_config.json", added_tokens_decoder={"9" * 5000: {"content": "x"}})
    (folder / "vocab.json").write_text(json.dumps({name: n for name, n in IDS.items() if name not in ("<s>", "</s>")}))
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    pieces = load_recognizer(tmp_path / "ours").model.tokenizer.pieces
    assert len(pieces) == len(IDS)
    assert {pieces[number] for number in (IDS["<s>"], IDS["</s>"])} == {""}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [{"audio_filepath": f"{text}.wav", "duration": 1.0, "text": text} for text in ("Bäh, das!", "ja")]
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("adapter", [[], ["--adapter"]], ids=["no adapter", "adapter"])
def test_a_model_without_head_gets_one_for_the_characters_of_texts(
    adapter: list[str], texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, ours, back = save_pretrained_only(tmp_path / "theirs"), tmp_path / "ours", tmp_path / "back"
    with refused(InputError, "lm_head ... --texts"):
        main([str(folder), "-o", str(ours)])
    assert main([str(folder), "-o", str(ours), "--texts", str(texts), *adapter]) == 0
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    assert f"{len(tensors)} tensors: {len(tensors) - 1} taken" in capsys.readouterr().out
    assert "Train it first" in (ours / "README.md").read_text()
    model = load_recognizer(ours).model
    assert model.tokenizer.decode(model.tokenizer.encode("das ja!")) == "das ja!"
    assert model.encoder.stride == (4 if adapter else 2)
    before = read_bundle(ours).weights
    assert main([str(folder), "-o", str(ours), "--texts", str(texts), *adapter]) == 0
    assert_equal(read_bundle(ours).weights, before)  # the random weights are the same each time
    assert main([str(ours), "--to", "huggingface", "-o", str(back)]) == 0
    written = safetensors.torch.load_file(back / "model.safetensors")
    assert all(
        torch.equal(written[f"wav2vec2_bert.{name}"], tensor) for name, tensor in tensors.items() if name != MASK
    )
    assert len(logits_of(back, sound(1.0))) == (25 if adapter else 49)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--texts"], "--texts ... has a head"),
        (["--texts", "--adapter"], "--adapter ... a head"),
        (["--adapter"], "--adapter ... --texts"),
        (["--pad-mode", "reflect"], "--pad-mode; got reflect"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(
    options: list[str], message: str, texts: Path, tmp_path: Path
) -> None:
    folder = save(tmp_path / "theirs")
    given = [part for option in options for part in ([option, str(texts)] if option == "--texts" else [option])]
    with refused(InputError, message):
        main([str(folder), "-o", str(tmp_path / "ours"), *given])


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a new key": ("config", {"window": 3}, "config.window ... not support"),
    "an activation": ("config", {"hidden_act": "relu"}, "hidden_act; got 'relu'"),
    "other positions": ("config", {"position_embeddings_type": "rotary"}, "position_embeddings_type; got 'rotary'"),
    "another eps": ("config", {"layer_norm_eps": 1e-6}, "layer_norm_eps; got 1e-06"),
    "an inner layer": ("config", {"use_intermediate_ffn_before_adapter": True}, "use_intermediate_ffn ... got true"),
    "another output": ("config", {"output_hidden_size": 8}, "output_hidden_size; got 8"),
    "another stride": ("config", {"adapter_stride": 4}, "adapter_stride; got 4"),
    "a billion adapters": (
        "config",
        {"add_adapter": True, "num_adapter_layers": 10**9},
        "num_adapter_layers; got 1000000000",
    ),
    "adapters without tensors": ("config", {"add_adapter": True}, "adapter.layers.0 ... missing"),
    "a billion layers": ("config", {"num_hidden_layers": 10**9}, "num_layers"),
    "a negative size": ("config", {"hidden_size": -16, "output_hidden_size": -16}, "encoder.dim; got -16"),
    "tensors of another size": ("config", {"hidden_size": 32, "output_hidden_size": 32}, "32 ... config says"),
    "a wide table": ("config", {"left_max_position_embeddings": 10**9}, "encoder.block.attention.left"),
    "a blank after the last piece": ("config", {"pad_token_id": 10}, "pad_token_id; got 10"),
    "no size of the head": ("config", {"vocab_size": None}, "vocab_size; got null"),
    "a large head": ("config", {"vocab_size": 10**12}, "vocab_size"),
    "a head of another size": ("config", {"vocab_size": 12}, "lm_head.weight ... 12"),
    "other bins": ("preprocessor_config", {"feature_size": 40, "num_mel_bins": 40}, "input_dim ... 80; got 160"),
    "another extractor": ("preprocessor_config", {"feature_extractor_type": "X"}, "SeamlessM4TFeatureExtractor"),
    "a new feature": ("preprocessor_config", {"mean": 1}, "preprocessor.mean ... not support"),
    "no samples": ("preprocessor_config", {"sampling_rate": 0}, "sampling_rate; got 0"),
    "nested ids": ("vocab", {"eng": {"a": 1}}, "vocab.json; got 'eng'"),
    "an id beyond the head": ("vocab", {"z": 99}, "vocab.json; got 'z': 99"),
    "an id of two pieces": ("vocab", {"z": 5}, "vocab.json ... several"),
    "a piece of two letters": ("vocab", {"b": 4, "bb": 1, "[PAD]": 4}, "vocab.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_folder_that_asr_does_not_support_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    name, settings, message = REFUSED[case]
    folder = save(tmp_path / "theirs")
    change(folder / f"{name}.json", **settings)
    assert_refused(folder, message, tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "vocab.json", "preprocessor_config.json"])
@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(name: str, how: str, tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    damage(folder / name, how)
    assert_refused(folder, name, tmp_path)


def test_an_unknown_tensor_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "theirs")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    safetensors.torch.save_file(tensors | {"project_q.weight": torch.zeros(2)}, folder / "model.safetensors")
    assert_refused(folder, "project_q.weight has none", tmp_path)


def test_a_run_folder_becomes_a_folder_for_the_hub_whose_card_names_the_model(tmp_path: Path) -> None:
    assert main([str(save(tmp_path / "theirs")), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "hub"), "--to", "huggingface"]) == 0
    assert "Wav2Vec2BertForCTC" in (tmp_path / "hub" / "README.md").read_text()


@pytest.mark.slow
@EACH_ADAPTER
def test_an_exported_model_has_the_texts_of_the_bundle(
    options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(save(tmp_path / "theirs", **options)), "-o", str(tmp_path / "ours")]) == 0
    assert export([str(tmp_path / "ours"), "-o", str(tmp_path / "onnx")]) == 0
    assert "texts are equal" in capsys.readouterr().out
    models = [load_recognizer(tmp_path / name) for name in ("ours", "onnx")]
    texts = [model.transcribe(sound(3.0), sample_rate=SAMPLE_RATE).text for model in models]
    assert texts[0] == texts[1] != ""


@torch.no_grad()
def test_shaw_attention_equals_its_equation_in_loops() -> None:
    dim, heads, left, right, lengths = 8, 2, 3, 1, [7, 4]
    attention = randomized(ShawAttention(dim, heads, 0.0, left=left, right=right)).double()
    x = torch.randn(2, 7, dim, dtype=torch.float64)
    out = attention(x, attention.positions(x), padding_mask(torch.tensor(lengths), 7))
    for row, length in enumerate(lengths):
        query, key, value = attention.qkv(x[row, :length]).unflatten(1, (3, heads, -1)).unbind(1)
        for head in range(heads):
            scores = torch.empty(length, length, dtype=torch.float64)
            for i in range(length):
                for j in range(length):
                    distance = attention.distances.weight[min(max(j - i, -left), right) + left]
                    scores[i, j] = query[i, head] @ (key[j, head] + distance) / (dim / heads) ** 0.5
            value[:, head] = scores.softmax(-1) @ value[:, head]
        torch.testing.assert_close(out[row, :length], attention.output(value.flatten(1)), rtol=0, atol=1e-12)


@pytest.mark.slow
@torch.no_grad()
def test_the_published_size_gives_the_log_probs_of_transformers(tmp_path: Path) -> None:
    """The default config of transformers, with 581 million random parameters; needs 8 GB of memory and 5 GB of disk."""
    folder = tmp_path / "theirs"
    torch.manual_seed(0)
    model = Wav2Vec2BertForCTC(Wav2Vec2BertConfig(vocab_size=len(IDS), pad_token_id=BLANK)).eval()
    assert round(sum(map(torch.numel, model.parameters())) / 1e6) == 581
    model.save_pretrained(folder)
    del model
    with_tokenizer(folder)
    waveform = sound(3.0)
    expected = blank_first(logits_of(folder, waveform)).log_softmax(-1)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    shutil.rmtree(folder)
    model = load_recognizer(tmp_path / "ours").model
    features = model.features(waveform)
    encoded = model(features[None], torch.tensor([len(features)]))
    log_probs = model.head.frame_head.log_probs(encoded.out)[0]
    torch.testing.assert_close(log_probs, expected, rtol=0, atol=1e-3)


@pytest.mark.slow
def test_fifty_steps_train_an_adapter_and_a_new_head(fluent: Path, tmp_path: Path) -> None:
    small = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    folder, ours, run_dir = save_pretrained_only(tmp_path / "theirs", **small), tmp_path / "ours", tmp_path / "run"
    assert main([str(folder), "-o", str(ours), "--texts", str(fluent / "train.jsonl")]) == 0
    short = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment", "checkpoint"))]
    given = [*short, *tone_corpus(fluent), f"init.from={ours}", f"run_dir={run_dir}", "adapter=lora"]
    given += ["adapter.trained=[head.*]", "trainer.max_steps=50", "trainer.max_epochs=50", "optimizer.lr=1e-2"]
    train(with_parts(settings_with(*given), given))
    losses = [float(row["valid/loss"]) for row in metrics(run_dir) if row["valid/loss"]]
    assert losses[-1] < losses[0]
    weights = safetensors.torch.load_file(run_dir / "bundle" / "weights.safetensors")
    assert {name.partition(".")[0] for name in weights} == {"encoder", "head"}
    assert all(".lora_" in name or name.startswith("head.") for name in weights)
