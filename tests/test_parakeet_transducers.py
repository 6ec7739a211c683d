"""Conversion of Hugging Face's Parakeet-RNNT and TDT: logits, loss, greedy text, and every tensor."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from transformers import AutoProcessor, ParakeetForRNNT, ParakeetForTDT

from asr.apps.convert.huggingface.convert import from_huggingface
from asr.apps.convert.tensors import COUNTER
from asr.convert import main
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.export import main as export
from asr.interfaces import Encoded
from tests import parakeet
from tests.parakeet import SAMPLE_RATE, change
from tests.refusals import refused
from tests.targets import targets_of
from tests.test_convert import assert_equal, assert_refused
from tests.test_parakeet import SUBWORDS, bundle, sound

KINDS = pytest.mark.parametrize("kind", ["rnnt", "tdt"])
WAVEFORMS = [sound(3.0), sound(1.2, seed=1), sound(2.1, seed=2)]


def converted(folder: Path, kind: str, **options: Any) -> tuple[Any, Any, Recognizer]:
    """Return transformers' model in float64 and its processor, and our model."""
    theirs, ours = folder / "theirs", folder / "ours"
    parakeet.save_transducer(theirs, kind, **options)
    assert main([str(theirs), "-o", str(ours)]) == 0
    model = {"rnnt": ParakeetForRNNT, "tdt": ParakeetForTDT}[kind].from_pretrained(theirs).double().eval()
    return model, AutoProcessor.from_pretrained(theirs), load_recognizer(ours)


def inputs_of(processor: Any, waveforms: list[Tensor]) -> dict[str, Tensor]:
    arrays = [waveform.numpy() for waveform in waveforms]
    inputs = processor.feature_extractor(arrays, sampling_rate=SAMPLE_RATE, return_tensors="pt")
    return {"input_features": inputs["input_features"].double(), "attention_mask": inputs["attention_mask"]}


@KINDS
@pytest.mark.parametrize("has_blank", [True, False], ids=["blank in the tokenizer", "no blank in the tokenizer"])
def test_the_logits_of_all_frames_and_tokens_equal_those_of_transformers(
    kind: str, has_blank: bool, tmp_path: Path
) -> None:
    model, processor, recognizer = converted(tmp_path, kind, has_blank=has_blank)
    inputs = inputs_of(processor, WAVEFORMS[:1])
    blank = model.config.blank_token_id
    tokens = torch.tensor([[3, 1, 4, 1, 5]])  # token ids of transformers
    with torch.no_grad():
        encoded = model.get_audio_features(**inputs, output_attention_mask=True)
        before = model.decoder(torch.cat([torch.tensor([[blank]]), tokens], dim=1))
        expected = model.joint(
            encoder_hidden_states=encoded.pooler_output[:, :, None], decoder_hidden_states=before[:, None]
        )
        head, ours = recognizer.model.head.double(), recognizer.model.encoder.double()
        out = ours(inputs["input_features"], inputs["attention_mask"].sum(dim=1))
        network, joiner = head.predictor, head.joiner
        actual = joiner(joiner.of_frames(out.out)[:, :, None], joiner.of_tokens(network(tokens + 1))[:, None])
    order = [blank, *range(blank), *range(blank + 1, expected.shape[-1])]
    num_frames = int(out.lengths[0])
    torch.testing.assert_close(
        actual[:, :num_frames], expected[:, :num_frames][..., order], rtol=0, atol=1e-6
    )  # weights are folded in float32


@KINDS
def test_the_loss_and_its_gradients_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    """transformers computes losses in float32; padding tokens are piece 2 for TDT, and the blank for RNNT."""
    model, processor, recognizer = converted(tmp_path, kind)
    inputs = inputs_of(processor, WAVEFORMS)
    tokens = [[3, 1, 4, 1, 5], [9, 6], [7, 5, 3, 5]]
    padding = {"tdt": model.config.pad_token_id, "rnnt": model.config.blank_token_id}[kind]
    rows = [torch.tensor(row) for row in tokens]
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding)
    begun = torch.cat([torch.full((3, 1), model.config.blank_token_id), labels], dim=1)
    expected = model(**inputs, labels=labels, decoder_input_ids=begun, output_attention_mask=True).loss
    expected.backward()

    head, encoder = recognizer.model.head.double().eval(), recognizer.model.encoder.double().eval()
    encoded: Encoded = encoder(inputs["input_features"], inputs["attention_mask"].sum(dim=1))
    lengths = torch.tensor([len(row) for row in tokens])
    losses = head.losses(encoded, targets_of(labels + 1, lengths))["loss"]
    # transformers computes these means over the batch.
    actual = {"tdt": (losses / lengths).mean(), "rnnt": losses.sum() / lengths.sum()}[kind]
    actual.backward()
    torch.testing.assert_close(actual.float(), expected.float(), rtol=1e-4, atol=0)
    joiner, blank = head.joiner, model.config.blank_token_id
    for ours, theirs in (
        (joiner.of_frames, model.encoder_projector),
        (joiner.of_tokens, model.decoder.decoder_projector),
        (encoder.blocks[0].feed_forward1.linear1, model.encoder.layers[0].feed_forward1.linear1),
    ):
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-3, atol=2e-4)
    order = [blank, *range(blank), *range(blank + 1, len(model.joint.head.bias))]
    torch.testing.assert_close(joiner.output.weight.grad, model.joint.head.weight.grad[order], rtol=1e-3, atol=2e-4)
    assert not head.predictor.embedding.weight.grad[0].any(), "the embedding of the blank is not trained"


def generated(model: Any, processor: Any) -> list[str]:
    """Return the texts that `generate` of transformers gives for WAVEFORMS."""
    texts = []
    for waveform in WAVEFORMS:
        sequences = model.generate(**inputs_of(processor, [waveform])).sequences
        ids = [token for token in sequences[0].tolist() if token != model.config.blank_token_id]
        texts.append(" ".join(processor.tokenizer.decode(ids, group_tokens=False).split()))
    return texts


@KINDS
def test_greedy_texts_equal_those_of_transformers_generate(kind: str, tmp_path: Path) -> None:
    model, processor, recognizer = converted(tmp_path, kind)
    texts = generated(model, processor)
    transcripts = recognizer.transcribe(WAVEFORMS, sample_rate=SAMPLE_RATE)
    assert [transcript.text for transcript in transcripts] == texts
    assert sum(map(len, texts)) > 20, "the texts must not be empty"
    for transcript in transcripts:
        assert all(0 <= word.start < word.end <= transcript.duration for word in transcript.words)


@KINDS
def test_every_tensor_is_accounted_for(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parakeet.save_transducer(tmp_path / "theirs", kind)
    assert main([str(tmp_path / "theirs"), "-o", str(tmp_path / "ours")]) == 0
    tensors = safetensors.torch.load_file(tmp_path / "theirs" / "model.safetensors")
    num_counters = sum(name.endswith(COUNTER) for name in tensors)
    folded = 1 + 2  # the bias of the prediction network's projection; weight and bias scaled in the subsampling
    output = capsys.readouterr().out
    assert f"{len(tensors)} tensors: {len(tensors) - num_counters - folded} taken, {folded} folded" in output


@KINDS
@pytest.mark.parametrize("has_blank", [True, False], ids=["blank in the tokenizer", "no blank in the tokenizer"])
def test_a_bundle_converts_back_with_equal_tensors_and_texts(kind: str, has_blank: bool, tmp_path: Path) -> None:
    """Folded values are not separated: encoder_projector.bias is the sum of two biases; the subsampling is scaled."""
    model, _, recognizer = converted(tmp_path, kind, has_blank=has_blank)
    back = tmp_path / "back"
    assert main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(back)]) == 0
    theirs, written = (
        safetensors.torch.load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "back")
    )
    frames, tokens = "encoder_projector.bias", "decoder.decoder_projector.bias"
    # The subsampling's last layer contains the scale of the encoder's input: 4, the square root of its dimension.
    expected = {
        **theirs,
        **{name: torch.tensor(0) for name in theirs if name.endswith(COUNTER)},
        **{name: 4 * theirs[name] for name in theirs if name.startswith("encoder.subsampling.linear.")},
        frames: theirs[frames] + theirs[tokens],
        tokens: torch.zeros_like(theirs[tokens]),
    }
    assert_equal(written, expected)
    again, before = from_huggingface(back).bundle, read_bundle(tmp_path / "ours")
    assert (again.config, again.files) == (before.config, before.files)
    assert_equal(again.weights, before.weights)
    assert generated(type(model).from_pretrained(back).double().eval(), AutoProcessor.from_pretrained(back)) == [
        transcript.text for transcript in recognizer.transcribe(WAVEFORMS, sample_rate=SAMPLE_RATE)
    ]


def test_an_export_of_a_hybrid_contains_only_the_transducer_and_the_command_names_the_other_tensors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = ["head/predictor=lstm", "head.predictor.dim=12", "head.joint_dim=12", "head.joint_activation=relu"]
    bundle(tmp_path / "ours", *SUBWORDS, "head=tdt", *network)
    assert main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")]) == 0
    assert "Left out: head.ctc.linear.bias, head.ctc.linear.weight. Parakeet has no CTC head" in capsys.readouterr().out
    written = ParakeetForTDT.from_pretrained(tmp_path / "theirs")
    weights = read_bundle(tmp_path / "ours").weights
    assert torch.equal(written.encoder_projector.weight, weights["head.joiner.of_frames.weight"])
    assert export([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "exported")]) == 0
    assert "Left out: head.ctc.linear.bias" in capsys.readouterr().out
    card = (tmp_path / "exported" / "README.md").read_text()
    assert "transformers' ParakeetForTDT." in card
    assert "- tdt" in card


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["head/predictor=stateless"],
            "head.predictor ... Hugging Face",
        ),
        (
            ["head/predictor=lstm", "head.predictor.dim=12"],
            "head.joint_dim ... head.predictor.dim",
        ),
        (["head=ctc_intermediate"], "head ... Hugging Face"),
    ],
)
def test_a_transducer_that_parakeet_cannot_represent_is_refused(
    overrides: list[str], message: str, tmp_path: Path
) -> None:
    bundle(tmp_path / "ours", *SUBWORDS, "head=tdt", *overrides)
    with refused(InputError, message):
        main([str(tmp_path / "ours"), "--to", "huggingface", "-o", str(tmp_path / "theirs")])
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "config.hidden_act; got 'gelu'"),
        ({"durations": [1, 2]}, "head.durations; got [1, 2]"),
        ({"durations": [0, 1, 2]}, "joint.head.weight"),
        ({"blank_token_id": 99}, "blank_token_id; got 99"),
        ({"decoder_hidden_size": "x"}, "decoder_hidden_size; got 'x'"),
        ({"num_decoder_layers": 1}, "decoder.lstm.bias_hh_l1"),
        ({"projection_size": 3}, "config.projection_size ... not support"),
        ({"model_type": "parakeet_rnnt"}, "config.durations ... not support"),
    ],
)
def test_settings_that_asr_does_not_support_are_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = parakeet.save_transducer(tmp_path / "theirs", "tdt")
    change(folder / "config.json", **changes)
    assert_refused(folder, message, tmp_path)


@pytest.mark.parametrize("name", ["decoder.embedding.weight", "decoder.lstm.weight_hh_l1", "joint.head.bias"])
@pytest.mark.parametrize(
    "damage",
    [lambda tensor: tensor[:-1].clone(), lambda tensor: tensor.long(), lambda tensor: tensor / 0, None],
    ids=["a row short", "integers", "not finite", "missing"],
)
def test_a_damaged_transducer_tensor_is_named_in_one_line(name: str, damage: Any, tmp_path: Path) -> None:
    folder = parakeet.save_transducer(tmp_path / "theirs", "tdt")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    tensor = weights.pop(name)
    if damage is not None:
        weights[name] = damage(tensor)
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert_refused(folder, name, tmp_path)
