"""Conversion of NeMo's RNNT and TDT, with and without a CTC head: logits, and every tensor."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

from asr.apps.convert.conformer import JOINT_ACTIVATIONS, kind_of
from asr.apps.convert.nemo.convert import from_nemo
from asr.apps.convert.nemo.transducer import transducer_sections
from asr.components.head.joint_network import ACTIVATIONS
from asr.convert import main
from asr.core.checkpoint.bundle import read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from tests.nemo import (
    DIM,
    FAST,
    LAYERS,
    MELS,
    MODEL,
    SAMPLE_RATE,
    as_nemo_3,
    nemo_config,
    nemo_files,
    saved,
    sentencepiece_model_of,
    tensors,
    vocabulary,
    write_tar,
)
from tests.nemo import member as tar_member
from tests.refusals import refused
from tests.test_convert import assert_equal, assert_refused

HIDDEN, JOINT, NUM_LAYERS = 10, 12, 2
DURATIONS = [0, 1, 2, 4]
TARGETS = {
    False: "nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel",
    True: "nemo.collections.asr.models.hybrid_rnnt_ctc_bpe_models.EncDecHybridRNNTCTCBPEModel",
}
# The settings that Parakeet-TDT v2 and v3 and Nemotron keep, although they have no CTC head.
UNUSED = {"_target_": "nemo.collections.asr.modules.ConvASRDecoder", "num_classes": -1, "vocabulary": []}
PUBLISHED = MODEL.parent / "published"
KINDS = ["rnnt", "tdt", "hybrid rnnt", "hybrid tdt"]


def config(kind: str, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a tiny model in NeMo's form, with these settings."""
    plain = nemo_config()
    pieces = vocabulary()
    is_tdt = kind.endswith("tdt")
    made: dict[str, Any] = {
        **plain,
        "target": TARGETS[kind.startswith("hybrid")],
        "encoder": plain["encoder"] | FAST,
        "decoder": {
            "_target_": "nemo.collections.asr.modules.RNNTDecoder",
            "normalization_mode": None,
            "random_state_sampling": False,
            "blank_as_pad": True,
            "vocab_size": len(pieces),
            "prednet": {"pred_hidden": HIDDEN, "pred_rnn_layers": NUM_LAYERS, "t_max": None, "dropout": 0.2},
        },
        "joint": {
            "_target_": "nemo.collections.asr.modules.RNNTJoint",
            "log_softmax": None,
            "preserve_memory": False,
            "fuse_loss_wer": True,
            "fused_batch_size": 4,
            "num_classes": len(pieces),
            "vocabulary": pieces,
            "jointnet": {"joint_hidden": JOINT, "activation": "relu", "dropout": 0.2},
        },
        "decoding": {"strategy": "greedy_batch", "greedy": {"max_symbols": 7}},
        "loss": {"loss_name": "default"},
    }
    if is_tdt:
        made["joint"]["num_extra_outputs"] = len(DURATIONS)
        made["decoding"] |= {"model_type": "tdt", "durations": DURATIONS}
        made["loss"] = {"loss_name": "tdt", "tdt_kwargs": {"durations": DURATIONS, "sigma": 0.05, "omega": 0.2}}
    if kind.startswith("hybrid"):
        made["aux_ctc"] = {"ctc_loss_weight": 0.3, "decoder": plain["decoder"]}
    for name, settings in sections.items():
        inner, _, key = name.partition("__")
        section = made[inner][key] if key else made[inner]
        section.update(settings)
    return made


def state(
    kind: str,
    linear: str = "joint_net.2",
    num_pieces: int = len(vocabulary()),
    num_durations: int = len(DURATIONS),
    num_layers: int = NUM_LAYERS,
) -> dict[str, Tensor]:
    """Return random tensors for a model of this kind, under NeMo's names."""
    generator = torch.Generator().manual_seed(1)
    num_outputs = num_pieces + 1 + (num_durations if kind.endswith("tdt") else 0)
    cells = nn.LSTM(HIDDEN, HIDDEN, num_layers)
    shapes = {
        "decoder.prediction.embed.weight": (num_pieces + 1, HIDDEN),
        **{f"decoder.prediction.dec_rnn.lstm.{name}": tuple(w.shape) for name, w in cells.state_dict().items()},
        "joint.enc.weight": (JOINT, DIM),
        "joint.enc.bias": (JOINT,),
        "joint.pred.weight": (JOINT, HIDDEN),
        "joint.pred.bias": (JOINT,),
        f"joint.{linear}.weight": (num_outputs, JOINT),
        f"joint.{linear}.bias": (num_outputs,),
    }
    made = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    made["decoder.prediction.embed.weight"][-1] = 0.0  # the blank's row, NeMo's padding_idx
    encoder = tensors(num_pieces, head="ctc_decoder", is_fast=True)
    if not kind.startswith("hybrid"):
        encoder = {name: tensor for name, tensor in encoder.items() if not name.startswith("ctc_decoder")}
    return encoder | made


def archive(folder: Path, settings: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    files = nemo_files(settings, weights)
    return write_tar(folder / "tiny.nemo", [tar_member(name, content) for name, content in files.items()])


def logits(weights: dict[str, Tensor], encoder_out: Tensor, tokens: list[int]) -> Tensor:
    """Compute the logits (T', U + 1, V + durations) of NeMo's joint network for frames (T', D) and NeMo's token ids."""
    cells = nn.LSTM(HIDDEN, HIDDEN, NUM_LAYERS, batch_first=True)
    begin = "decoder.prediction.dec_rnn.lstm."
    cells.load_state_dict({name[len(begin) :]: w for name, w in weights.items() if name.startswith(begin)})
    embedded = weights["decoder.prediction.embed.weight"][tokens]
    read, _ = cells(torch.cat([torch.zeros(1, HIDDEN), embedded])[None])  # the first input is zeros
    frames = encoder_out @ weights["joint.enc.weight"].T + weights["joint.enc.bias"]
    before = read[0] @ weights["joint.pred.weight"].T + weights["joint.pred.bias"]
    hidden = torch.relu(frames[:, None] + before[None])
    return hidden @ weights["joint.joint_net.2.weight"].T + weights["joint.joint_net.2.bias"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_converted_model_of_nemo_gives_nemos_logits_and_can_be_used(kind: str, tmp_path: Path) -> None:
    weights = state(kind)
    assert main([str(archive(tmp_path, config(kind), weights)), "-o", str(tmp_path / "ours")]) == 0
    recognizer = load_recognizer(tmp_path / "ours")
    head: Any = recognizer.model.head
    joiner = head.joiner
    encoder_out, tokens = torch.randn(5, DIM), [3, 1, 4]
    with torch.no_grad():
        before = joiner.of_tokens(head.predictor(torch.tensor([tokens]) + 1))
        actual = joiner(joiner.of_frames(encoder_out)[:, None], before)
    expected = logits(weights, encoder_out, tokens)
    blank = len(vocabulary())
    order = [blank, *range(blank), *range(blank + 1, expected.shape[-1])]
    torch.testing.assert_close(actual, expected[..., order], rtol=0, atol=1e-5)
    assert type(recognizer.decode).__name__ == "TransducerGreedy"
    assert recognizer.decode.max_symbols == 7  # type: ignore[attr-defined]
    recognizer.transcribe(torch.randn(2 * SAMPLE_RATE), sample_rate=SAMPLE_RATE)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_and_setting_is_accounted_for(kind: str, tmp_path: Path) -> None:
    weights = state(kind)
    converted = from_nemo(archive(tmp_path, config(kind), weights))
    account, head = converted.account, converted.bundle.config["head"]
    assert (account.folded, account.not_needed) == (1 + 2, LAYERS)  # folded: one bias, and the scale into two tensors
    assert account.taken == len(weights) - 3 - LAYERS
    assert head["ctc_weight"] == (0.3 if kind.startswith("hybrid") else 0.0)
    if kind.endswith("tdt"):
        assert (head["durations"], head["sigma"], head["omega"]) == (DURATIONS, 0.05, 0.2)
    assert head["fast_emit"] == 0.0
    ours = converted.bundle.weights
    assert not ours["head.predictor.embedding.weight"][0].any()
    if kind.startswith("hybrid"):
        theirs = weights["ctc_decoder.decoder_layers.0.weight"][:, :, 0]
        assert torch.equal(ours["head.ctc.linear.weight"], theirs.roll(1, dims=0))


def test_the_weight_of_fast_emit_is_converted_from_and_to_nemo(tmp_path: Path) -> None:
    loss = {"loss_name": "default", "warprnnt_numba_kwargs": {"fastemit_lambda": 0.03, "clamp": -1.0}}
    settings = config("rnnt") | {"loss": loss}
    head = from_nemo(archive(tmp_path, settings, state("rnnt"))).bundle.config["head"]
    assert head["fast_emit"] == 0.03
    assert transducer_sections({"head": head, "encoder": {"dim": DIM}, "decode": {}}, ["a"], True)["loss"] == loss


@pytest.mark.parametrize("kind", ["rnnt", "tdt", "ctc"])
@pytest.mark.parametrize("target", ["NeMo's class", "mylab.models.Unknown", None])
def test_sections_of_heads_that_the_model_does_not_have_are_ignored(
    kind: str, target: str | None, tmp_path: Path
) -> None:
    unused = {"ctc_loss_weight": 0.3, "decoder": UNUSED}
    if kind == "ctc":
        settings, weights = nemo_config() | {"aux_ctc": unused, "joint": config("tdt")["joint"]}, tensors()
        del settings["joint"]["_target_"]
        if target != "NeMo's class":  # without a known class, the section of the joint network makes it a transducer
            del settings["joint"]
    else:
        settings, weights = config(kind) | {"aux_ctc": unused}, state(kind)
    if target != "NeMo's class":
        settings["target"] = target
    head = from_nemo(archive(tmp_path, settings, weights)).bundle.config["head"]
    assert (kind_of(head), head.get("ctc_weight", 0.0)) == (kind.upper(), 0.0)


@pytest.mark.parametrize("target", ["mylab.models.Unknown", None])
def test_the_tensors_decide_whether_a_model_of_an_unknown_class_is_a_hybrid(target: str | None, tmp_path: Path) -> None:
    settings = config("hybrid tdt") | {"target": target}
    head = from_nemo(archive(tmp_path, settings, state("hybrid tdt"))).bundle.config["head"]
    assert head["ctc_weight"] == 0.3


def test_a_hybrid_without_its_ctc_head_is_refused(tmp_path: Path) -> None:
    assert_refused(archive(tmp_path, config("hybrid tdt"), state("tdt")), "ctc_decoder", tmp_path)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="../shared/models/published (real configs) is missing")
@pytest.mark.parametrize(
    ("name", "ctc_weight"),
    [("parakeet-tdt-0.6b-v2", 0.0), ("parakeet-tdt-0.6b-v3", 0.0), ("parakeet-tdt_ctc-110m", 0.3)],
)
def test_the_config_of_a_published_model_converts_with_small_sizes(
    name: str, ctc_weight: float, tmp_path: Path
) -> None:
    settings = yaml.load((PUBLISHED / name / "model_config.yaml").read_text(), yaml.CSafeLoader)
    settings["preprocessor"]["features"] = MELS
    sizes = nemo_config()["encoder"]
    settings["encoder"] |= {key: sizes[key] for key in sizes.keys() - {"_target_", "dropout"}} | {"use_bias": False}
    settings["decoder"]["prednet"]["pred_hidden"] = HIDDEN
    settings["joint"]["jointnet"] |= {"encoder_hidden": DIM, "pred_hidden": HIDDEN, "joint_hidden": JOINT}
    pieces, num_layers = settings["joint"]["vocabulary"], settings["decoder"]["prednet"]["pred_rnn_layers"]
    weights = state("hybrid tdt" if ctc_weight else "tdt", "joint_net.2", len(pieces), 5, num_layers)
    files = {
        "model_config.yaml": yaml.dump(settings, Dumper=yaml.CSafeDumper, allow_unicode=True).encode(),
        "model_weights.ckpt": saved(weights),
        settings["tokenizer"]["model_path"].removeprefix("nemo:"): sentencepiece_model_of(pieces),
    }
    path = write_tar(tmp_path / "published.nemo", as_nemo_3(files))
    assert main([str(path), "-o", str(tmp_path / "ours")]) == 0
    recognizer = load_recognizer(tmp_path / "ours")
    head: Any = recognizer.model.head
    assert (head.durations, recognizer.model.tokenizer.vocab_size) == ((0, 1, 2, 3, 4), len(pieces) + 1)
    assert read_bundle(tmp_path / "ours").config["head"]["ctc_weight"] == ctc_weight
    recognizer.transcribe(torch.randn(2 * 16000), sample_rate=16000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dropout", [0.2, 0.0])
def test_a_bundle_converts_back_to_an_archive_with_equal_tensors(kind: str, dropout: float, tmp_path: Path) -> None:
    """Folded values are not separated again: joint.enc.bias keeps both biases, and the subsampling keeps the scale."""
    weights = state(kind, "joint_net.2" if dropout else "joint_net.1")
    path = archive(tmp_path, config(kind, joint__jointnet={"dropout": dropout}), weights)
    before = from_nemo(path).bundle
    assert main([str(path), "-o", str(tmp_path / "ours")]) == 0
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    back = from_nemo(tmp_path / "back.nemo").bundle
    assert (back.config, back.files) == (before.config, before.files)
    assert_equal(back.weights, before.weights)
    with tarfile.open(tmp_path / "back.nemo") as tar:
        written = torch.load(io.BytesIO(tar.extractfile("./model_weights.ckpt").read()), weights_only=True)  # type: ignore[union-attr]
    scale = DIM**0.5
    expected = {
        **weights,
        **{name: torch.tensor(0) for name in weights if name.endswith("num_batches_tracked")},
        **{name: scale * weights[name] for name in weights if name.startswith("encoder.pre_encode.out.")},
        "joint.enc.bias": weights["joint.enc.bias"] + weights["joint.pred.bias"],
        "joint.pred.bias": torch.zeros(JOINT),
    }
    assert_equal({name: tensor for name, tensor in written.items() if not name.startswith("preprocessor.")}, expected)


def test_a_blank_with_a_trained_embedding_cannot_be_written_to_an_archive(tmp_path: Path) -> None:
    """NeMo's prediction network starts with zeros, whatever the row of the blank contains."""
    assert main([str(archive(tmp_path, config("rnnt"), state("rnnt"))), "-o", str(tmp_path / "ours")]) == 0
    contents = read_bundle(tmp_path / "ours")
    contents.weights["head.predictor.embedding.weight"][0] += 1.0
    replace_bundle(tmp_path / "ours", contents)
    message = "head.predictor.embedding.weight ... NeMo"
    with refused(InputError, message):
        main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")])
    assert not (tmp_path / "back.nemo").exists()


def test_without_dropout_the_last_layer_of_the_joint_network_has_another_number(tmp_path: Path) -> None:
    settings = config("rnnt", joint__jointnet={"dropout": 0.0, "activation": "tanh"})
    converted = from_nemo(archive(tmp_path, settings, state("rnnt", "joint_net.1")))
    assert converted.bundle.config["head"]["joint_activation"] == "tanh"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"decoder": {"normalization_mode": "layer"}}, "decoder.normalization_mode; got 'layer'"),
        ({"decoder": {"blank_as_pad": False}}, "decoder.blank_as_pad; got false"),
        (
            {"decoder": {"_target_": "nemo.collections.asr.modules.StatelessTransducerDecoder"}},
            "decoder ... LSTM",
        ),
        (
            {"decoder__prednet": {"rnn_hidden_size": 20}},
            "decoder.prednet.rnn_hidden_size ... -1",
        ),
        ({"decoder__prednet": {"pred_hidden": None}}, "decoder.prednet.pred_hidden; got null"),
        ({"decoder__prednet": {"surprise": 1}}, "decoder.prednet.surprise ... not support"),
        ({"decoder__prednet": {"dropout": "x"}}, "head.predictor.dropout; got 'x'"),
        ({"joint": {"num_extra_outputs": 5}}, "joint.num_extra_outputs ... decoding.durations"),
        (
            {"joint__jointnet": {"activation": "sigmoid"}},
            "joint.jointnet.activation ... 'relu'",
        ),
        ({"decoding": {"big_blank_durations": [2, 4]}}, "decoding.big_blank_durations; got [2, 4]"),
        ({"decoding": {"durations": [1, 2, 3, 4]}}, "head.durations; got [1, 2, 3, 4]"),
        ({"decoding": {"durations": "all"}}, "decoding.durations; got 'all'"),
        ({"aux_ctc": {"ctc_loss_weight": 2}}, "head.ctc_weight; got 2"),
    ],
)
def test_settings_that_asr_does_not_support_are_refused_by_name(
    sections: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = archive(tmp_path, config("hybrid tdt", **sections), state("hybrid tdt"))
    assert_refused(path, message, tmp_path)


def test_the_supported_activations_are_those_of_our_joiner() -> None:
    assert set(JOINT_ACTIVATIONS) == set(ACTIVATIONS)


OF_TRANSDUCERS = ["decoder.prediction.embed.weight", "decoder.prediction.dec_rnn.lstm.weight_hh_l1", "joint.pred.bias"]
DAMAGES: dict[str, Callable[[Tensor], Tensor | None]] = {
    "missing": lambda tensor: None,
    "a row short": lambda tensor: tensor[:-1],
    "a scalar": lambda tensor: tensor.sum(),
    "another rank": lambda tensor: tensor[None],
    "integers": lambda tensor: tensor.long(),
    "not finite": lambda tensor: tensor / 0,
    "without data": lambda tensor: tensor.to("meta"),
    "sparse": lambda tensor: tensor.to_sparse(),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", OF_TRANSDUCERS)
def test_a_damaged_transducer_tensor_is_named_in_one_line(name: str, damage: str, tmp_path: Path) -> None:
    weights = state("tdt")
    damaged = DAMAGES[damage](weights.pop(name))
    path = archive(tmp_path, config("tdt"), weights if damaged is None else weights | {name: damaged})
    assert_refused(path, name, tmp_path)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("decoder__prednet", "pred_hidden", 10**9, "head.predictor.dim; got 1000000000"),
        ("decoder__prednet", "pred_rnn_layers", 10**5, "head.predictor.num_layers; got 100000"),
        ("joint__jointnet", "joint_hidden", 10**9, "head.joint_dim; got 1000000000"),
        ("joint", "num_extra_outputs", 10**9, "decoding.durations ... 4; got 1000000000"),
        ("decoding", "durations", [0, 1, 10**12], "decoding.durations ... 3; got 4"),
        ("decoding", "greedy", {"max_symbols": 10**9}, "decode.max_symbols; got 1000000000"),
    ],
)
def test_sizes_that_contradict_the_tensors_are_reported_in_one_line(
    section: str, key: str, value: Any, message: str, tmp_path: Path
) -> None:
    assert_refused(archive(tmp_path, config("tdt", **{section: {key: value}}), state("tdt")), message, tmp_path)


@pytest.mark.parametrize("name", ["decoder", "joint", "loss", "decoding", "aux_ctc"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_a_damaged_section_is_reported_in_one_line_or_not_needed(name: str, value: Any, tmp_path: Path) -> None:
    settings = config("hybrid tdt") | {name: value}
    path = archive(tmp_path, settings, state("hybrid tdt"))
    if name in ("loss", "decoding"):  # the durations are in both sections
        assert from_nemo(path).bundle.config["head"]["durations"] == DURATIONS
        return
    named = {"decoder": "decoder", "joint": "joint" if value is not None else "decoder.prediction", "aux_ctc": "ctc"}
    assert_refused(path, named[name], tmp_path)


def test_local_attention_is_converted_in_both_directions(tmp_path: Path) -> None:
    near = {"self_attention_model": "rel_pos_local_attn", "att_context_size": [3, 3]}
    path = archive(tmp_path, config("tdt", encoder=near), state("tdt"))
    assert main([str(path), "-o", str(tmp_path / "ours")]) == 0
    before = read_bundle(tmp_path / "ours")
    assert before.config["encoder"]["block"]["attention"] == {"name": "local_attention", "context": 3, "bias": False}
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    assert from_nemo(tmp_path / "back.nemo").bundle.config == before.config


@pytest.mark.parametrize("sides", [[3, 3], [[3, 3]]])
def test_full_attention_in_a_band_is_local_attention(sides: list[Any], tmp_path: Path) -> None:
    path = archive(tmp_path, config("tdt", encoder={"att_context_size": sides}), state("tdt"))
    encoder = from_nemo(path).bundle.config["encoder"]
    assert encoder["block"]["attention"] == {"name": "local_attention", "context": 3, "bias": False}
    for other in ([3, 4], [3, -1], [[3, 3], [4, 4]]):
        path = archive(tmp_path, config("tdt", encoder={"att_context_size": other}), state("tdt"))
        assert_refused(path, "att_context_size", tmp_path)


def test_a_model_for_chunks_and_whole_recordings_is_read_for_whole_recordings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The keys are those of parakeet-unified-en-0.6b."""
    unified = {
        "att_context_style": "chunked_limited_with_rc",
        "att_chunk_context_size": [[70], [1, 2, 7, 13], [0, 1, 2, 3, 4, 7, 13]],
        "conv_context_style": "dcc",
        "att_context_size": [-1, -1],
    }
    expected = from_nemo(archive(tmp_path, config("tdt"), state("tdt"))).bundle
    path = archive(tmp_path, config("tdt", encoder=unified), state("tdt"))
    assert main([str(path), "-o", str(tmp_path / "ours")]) == 0
    out = capsys.readouterr().out
    assert all(key in out for key in ("att_chunk_context_size", "conv_context_style"))
    assert read_bundle(tmp_path / "ours").config == expected.config
    for key in ("conv_context_style", "att_chunk_context_size"):
        others = {name: value for name, value in unified.items() if name != "att_context_style"}
        path = archive(tmp_path, config("tdt", encoder={key: others[key]}), state("tdt"))
        assert_refused(path, key, tmp_path)


def test_full_attention_becomes_local_attention_with_the_same_weights(tmp_path: Path) -> None:
    path = archive(tmp_path, config("tdt"), state("tdt"))
    assert main([str(path), "-o", str(tmp_path / "full")]) == 0
    for source, name in ((path, "of nemo"), (tmp_path / "full", "of a bundle")):
        assert main([str(source), "--local-attention", "100", "-o", str(tmp_path / name)]) == 0
        local = read_bundle(tmp_path / name)
        assert local.config["encoder"]["block"]["attention"] == {
            "name": "local_attention",
            "context": 100,
            "bias": False,
        }
        assert_equal(local.weights, read_bundle(tmp_path / "full").weights)
    waveform = torch.randn(2 * SAMPLE_RATE)  # shorter than the context, so local attention gives the same text
    texts = [
        load_recognizer(tmp_path / name).transcribe(waveform, sample_rate=SAMPLE_RATE).text
        for name in ("full", "of nemo", "of a bundle")
    ]
    assert len(set(texts)) == 1
    with refused(InputError, "encoder.block.attention.context", got=0):
        main([str(path), "--local-attention", "0", "-o", str(tmp_path / "none")])
    assert not (tmp_path / "none").exists()
