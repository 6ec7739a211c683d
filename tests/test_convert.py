"""Conversion of NVIDIA NeMo's models in both directions: every tensor, and protection against malicious archives."""

import io
import math
import os
import pickle
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import yaml
from torch import Tensor

from asr.apps.convert.nemo.config import features_config
from asr.apps.convert.nemo.convert import from_nemo
from asr.apps.convert.nemo.encoder import encoder_config
from asr.convert import main
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from tests.conftest import SHARED
from tests.forked import run_module
from tests.nemo import (
    AUDIO,
    DIM,
    FAST,
    LAYERS,
    MODEL,
    SAMPLE_RATE,
    WINDOW,
    as_nemo_3,
    audio,
    golden,
    member,
    needs_model,
    nemo_config,
    nemo_files,
    saved,
    sentencepiece_model,
    tensors,
    vocabulary,
    write_tar,
)
from tests.refusals import check_ended, mentions, refused

Files = dict[str, bytes]


def archive(folder: Path, config: dict[str, Any] | None = None, state: Any = None) -> Path:
    """Write the tiny model in the archive format of NeMo 3."""
    return write_tar(folder / "tiny.nemo", as_nemo_3(nemo_files(config, state)))


def changed(**sections: dict[str, Any]) -> dict[str, Any]:
    """Return the tiny model's config with changed settings in these sections."""
    config = nemo_config()
    return config | {name: config[name] | settings for name, settings in sections.items()}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive(tmp_path_factory.mktemp("tiny"))


def in_folder(folder: Path, files: Files) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


FORMS: dict[str, Callable[[Path, Files], Path]] = {
    "plain tar": lambda path, files: write_tar(path / "a.nemo", as_nemo_3(files)),
    "gzipped tar": lambda path, files: write_tar(path / "a.nemo", as_nemo_3(files), "w:gz"),
    "names without ./": lambda path, files: write_tar(path / "a.nemo", [member(*file) for file in files.items()]),
    "weights first": lambda path, files: write_tar(path / "a.nemo", as_nemo_3(dict(reversed(files.items())))),
    "folder": lambda path, files: in_folder(path / "a", files),
    "folder of safetensors": lambda path, files: in_folder(
        path / "a",
        {name: content for name, content in files.items() if name != "model_weights.ckpt"}
        | {"model.safetensors": safetensors.torch.save(tensors())},
    ),
    "tokenizer by its own name": lambda path, files: write_tar(
        path / "a.nemo",
        as_nemo_3(
            files
            | {"tokenizer.model": sentencepiece_model()}
            | {"model_config.yaml": yaml.safe_dump(changed(tokenizer={"model_path": None})).encode()}
        ),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_model_gives_the_same_bundle(form: str, tiny: Path, tmp_path: Path) -> None:
    expected, actual = (from_nemo(path) for path in (tiny, FORMS[form](tmp_path, nemo_files())))
    assert actual.bundle.config == expected.bundle.config
    assert actual.bundle.files == expected.bundle.files
    assert_equal(actual.bundle.weights, expected.bundle.weights)


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in actual.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name


def test_tensors_are_assigned_to_the_layers_with_the_same_computation(tiny: Path) -> None:
    theirs, ours = tensors(), from_nemo(tiny).bundle.weights
    block, layer = "encoder.blocks.1", "encoder.layers.1"
    weight = theirs["decoder.decoder_layers.0.weight"]
    assert torch.equal(ours["head.linear.weight"][0], weight[-1, :, 0])  # the blank
    assert torch.equal(ours["head.linear.weight"][1:], weight[:-1, :, 0])
    assert torch.equal(ours["head.linear.bias"][0], theirs["decoder.decoder_layers.0.bias"][-1])
    for kind in ("weight", "bias"):
        scaled = ours[f"encoder.subsampling.linear.{kind}"]
        torch.testing.assert_close(scaled, theirs[f"encoder.pre_encode.out.{kind}"] * math.sqrt(DIM), rtol=1e-6, atol=0)
        for number, name in enumerate("qkv"):
            part = ours[f"{block}.attention.qkv.{kind}"][number * DIM : (number + 1) * DIM]
            assert torch.equal(part, theirs[f"{layer}.self_attn.linear_{name}.{kind}"])
    assert torch.equal(ours[f"{block}.attention.u"][:, 0], theirs[f"{layer}.self_attn.pos_bias_u"])
    assert torch.equal(ours[f"{block}.convolution.norm.running_var"], theirs[f"{layer}.conv.batch_norm.running_var"])
    gate = ours[f"{block}.convolution.pointwise1.weight"]
    assert torch.equal(gate, theirs[f"{layer}.conv.pointwise_conv1.weight"][:, :, 0])


def test_every_tensor_is_accounted_for(tmp_path: Path) -> None:
    from asr.core.build import build_features

    features = build_features(from_nemo(archive(tmp_path)).bundle.config)
    buffers = {"preprocessor.featurizer.window": features.taper, "preprocessor.featurizer.fb": features.mel.T[None]}
    account = from_nemo(archive(tmp_path, state=tensors() | buffers)).account
    num_parameters = len(tensors()) - LAYERS
    assert (account.taken, account.folded) == (num_parameters - 2, 2)
    assert (account.compared, account.not_needed) == (2, LAYERS)
    unscaled = from_nemo(archive(tmp_path, changed(encoder={"xscaling": False})))
    assert unscaled.account.folded == 0
    assert torch.equal(
        unscaled.bundle.weights["encoder.subsampling.linear.bias"], tensors()["encoder.pre_encode.out.bias"]
    )


def test_a_character_tokenizer_becomes_a_char_tokenizer_of_asr(tmp_path: Path) -> None:
    labels = [" ", "a", "b", "'"]
    config = nemo_config(labels)
    del config["tokenizer"]
    converted = from_nemo(archive(tmp_path, config | {"labels": labels}, tensors(len(labels))))
    assert converted.bundle.config["tokenizer"] == {"name": "char"}
    assert converted.bundle.files == {"characters.json": b'[" ", "a", "b", "\'"]\n'}


def test_pieces_keep_their_order_after_the_blank(tiny: Path, tmp_path: Path) -> None:
    assert main([str(tiny), "-o", str(tmp_path / "tiny")]) == 0
    tokenizer = load_recognizer(tmp_path / "tiny").model.tokenizer
    assert tokenizer.pieces == ["", " ⁇ ", *(piece.replace("▁", " ") for piece in vocabulary()[1:])]
    their_ids = {piece: number for number, piece in enumerate(vocabulary())}
    text = "the lazy fox"
    ids = tokenizer.encode(text)
    assert "".join(vocabulary()[token - 1] for token in ids).replace("▁", " ").strip() == text
    assert all(their_ids[vocabulary()[token - 1]] == token - 1 for token in ids)
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(("pieces", "normalizer"), [(None, "basic"), (["Q", "."], "as_written")])
def test_a_model_with_capitals_or_punctuation_in_its_tokens_gets_the_as_written_normalizer(
    pieces: list[str] | None, normalizer: str, tmp_path: Path
) -> None:
    config, state = None, None
    if pieces:
        config, state = nemo_config(["a", *pieces]) | {"tokenizer": None}, tensors(3)
    assert from_nemo(archive(tmp_path, config, state)).bundle.config["normalizer"] == normalizer


def test_the_command_writes_a_usable_bundle_and_a_card_that_names_its_source(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "tiny"
    source = "Trained by nobody; licence CC0-1.0."
    assert main([str(tiny), "-o", str(output), "--source", source, "--pad-mode", "reflect"]) == 0
    assert capsys.readouterr().out.startswith(f"{output}: tiny.nemo, 88 tensors: 84 taken, 2 folded")
    card = (output / "README.md").read_text()
    assert all(text in card for text in (source, "tiny.nemo, written by NeMo 1.23.0", "SHA-256"))
    assert read_bundle(output).config["features"]["pad_mode"] == "reflect"
    [transcript] = load_recognizer(output).transcribe([0.1 * torch.randn(SAMPLE_RATE)], sample_rate=SAMPLE_RATE)
    assert transcript.duration == 1.0


WITH_CHARACTERS = nemo_config([" ", "a", "b"]) | {"tokenizer": None}


@pytest.mark.parametrize(
    ("config", "state"),
    [(None, None), (WITH_CHARACTERS, tensors(3)), (changed(encoder=FAST), tensors(is_fast=True))],
    ids=["subwords", "characters", "Fast Conformer"],
)
def test_a_bundle_that_is_converted_to_an_archive_and_back_is_bit_identical(
    config: dict[str, Any] | None, state: dict[str, Tensor] | None, tmp_path: Path
) -> None:
    before = from_nemo(archive(tmp_path, config, state)).bundle
    assert main([str(tmp_path / "tiny.nemo"), "-o", str(tmp_path / "tiny")]) == 0
    assert main([str(tmp_path / "tiny"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    back = from_nemo(tmp_path / "back.nemo")
    assert (back.bundle.config, back.bundle.files) == (before.config, before.files)
    assert_equal(back.bundle.weights, before.weights)
    with tarfile.open(tmp_path / "back.nemo") as tar:
        written = torch.load(io.BytesIO(tar.extractfile("./model_weights.ckpt").read()), weights_only=True)  # type: ignore[union-attr]
        assert tar.getmembers()[0].name == "."
    theirs = tensors() if state is None else state
    computed = {"preprocessor.featurizer.window": (WINDOW,), "preprocessor.featurizer.fb": (1, 20, 129)}
    expected = {name: tuple(tensor.shape) for name, tensor in theirs.items()} | computed
    assert {name: tuple(tensor.shape) for name, tensor in written.items()} == expected


def test_a_bundle_that_nemo_cannot_represent_is_refused(tiny: Path, tmp_path: Path) -> None:
    main([str(tiny), "-o", str(tmp_path / "tiny")])
    path = tmp_path / "tiny" / "config.json"
    path.write_text(path.read_text().replace('"utterance_cmvn",\n      "eps"', '"per_utterance",\n      "min_std"'))
    with refused(InputError, "features.normalize ... utterance_cmvn"):
        main([str(tmp_path / "tiny"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")])
    assert not (tmp_path / "back.nemo").exists()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"encoder": {"self_attention_model": "abs_pos"}},
            "encoder.self_attention_model ... 'rel_pos'",
        ),
        (
            {"encoder": {"att_context_size": [128, 64]}},
            "encoder.att_context_size ... [128, 64]",
        ),
        (
            {"encoder": {"subsampling": "stacking"}},
            "encoder.subsampling ... 'striding'",
        ),
        ({"encoder": {"subsampling_factor": 8}}, "encoder.subsampling_factor; got 8"),
        (
            {"encoder": {"subsampling": "dw_striding"}},
            "encoder.subsampling_factor; got 4",
        ),
        ({"encoder": {"causal_downsampling": True}}, "encoder.causal_downsampling; got true"),
        ({"encoder": {"conv_context_size": "causal"}}, "encoder.conv_context_size; got 'causal'"),
        ({"encoder": {"conv_norm_type": "layer_norm"}}, "encoder.conv_norm_type ... 'batch_norm'"),
        ({"encoder": {"use_bias": "no"}}, "encoder.use_bias; got 'no'"),
        ({"encoder": {"reduction": "pooling"}}, "encoder.reduction; got 'pooling'"),
        ({"encoder": {"feat_out": 640}}, "encoder.feat_out; got 640"),
        ({"encoder": {"new_in_nemo_4": 1}}, "encoder.new_in_nemo_4 ... not support"),
        ({"encoder": {"_target_": "nemo.x.SqueezeformerEncoder"}}, "encoder ... nemo.x.Squeeze"),
        ({"encoder": {"d_model": "${model.d}"}}, "encoder.d_model; got ${model"),
        ({"encoder": {"d_model": 10**9}}, "encoder.dim ... whole number"),
        ({"encoder": {"n_heads": 3}}, "encoder.dim ... encoder.block.num_heads"),
        ({"decoder": {"_target_": "nemo.x.RNNTDecoder"}}, "decoder ... CTC"),
        ({"preprocessor": {"normalize": "all_features"}}, "preprocessor.normalize ... 'per_feature'"),
        ({"preprocessor": {"n_fft": 512}}, "preprocessor.n_fft; got 512"),
        ({"preprocessor": {"window_size": -0.1}}, "preprocessor.window_size ... of seconds"),
        ({"preprocessor": {"_target_": "nemo.x.AudioToMFCCPreprocessor"}}, "preprocessor ... features"),
        ({"tokenizer": {"type": "wpe"}}, "tokenizer.type; got 'wpe'"),
        (
            {"tokenizer": {"model_path": "nemo:../../etc/passwd"}},
            "'s model ' ... ../../etc/passwd",
        ),
        (
            {"decoder": {"vocabulary": [*vocabulary()[:-1], "x"]}},
            "39 ... 'x'",
        ),
        ({"decoder": {"vocabulary": vocabulary()[:-1]}}, "39 ... of the tokenizer"),
        ({"decoder": {"add_blank": False}}, "decoder.add_blank; got False"),
        ({"encoder": {"ff_expansion_factor": "four"}}, "encoder.block.feed_forward_factor; got 'four'"),
        (
            {"encoder": {"self_attention_model": "rel_pos_local_attn"}},
            "encoder.att_context_size; got null",
        ),
        (
            {"encoder": {"self_attention_model": "rel_pos_local_attn", "att_context_size": [128, 64]}},
            "encoder.att_context_size; got [128, 64]",
        ),
        (
            {"encoder": {"self_attention_model": "rel_pos_local_attn", "att_context_size": [-1, -1]}},
            "encoder.block.attention.context; got -1",
        ),
        ({"preprocessor": {"new_in_nemo_4": 1}}, "preprocessor.new_in_nemo_4 ... not support"),
        ({"preprocessor": {"sample_rate": None}}, "preprocessor.sample_rate; got null"),
        (
            {"preprocessor": {"window_stride": 2.0}},
            "preprocessor.window_stride; got 2",
        ),
    ],
)
def test_a_config_that_asr_does_not_support_is_refused_in_one_line(
    sections: dict[str, dict[str, Any]], message: str, tmp_path: Path
) -> None:
    assert_refused(archive(tmp_path, changed(**sections)), message, tmp_path)


REFUSED: dict[str, dict[str, Any]] = {  # settings with a single supported value, each set to an unsupported value
    "encoder": {
        "feat_out": 640,
        "causal_downsampling": True,
        "subsampling": "vggnet",
        "subsampling_factor": 2,
        "reduction": "striding",
        "self_attention_model": "abs_pos",
        "att_context_size": [[70, 13], [70, 0]],
        "att_context_style": "chunked",
        "att_chunk_context_size": [[70], [13], [7]],
        "conv_norm_type": "group_norm4",
        "conv_context_size": [4, 0],
        "conv_context_style": "dcc",
        "use_bias": "sometimes",
        "global_tokens": 1,
    },
    "preprocessor": {
        "window": "hamming",
        "normalize": "all_features",
        "n_fft": 1024,
        "preemph": None,
        "lowfreq": 20,
        "highfreq": 3800,
        "log": False,
        "log_zero_guard_type": "clamp",
        "log_zero_guard_value": 1e-5,
        "frame_splicing": 3,
        "exact_pad": True,
        "mag_power": 1.0,
        "mel_norm": None,
        "use_torchaudio": True,
    },
}


@pytest.mark.parametrize(
    ("section", "key"), [(section, key) for section, settings in REFUSED.items() for key in settings]
)
def test_an_unsupported_value_is_refused_in_one_line_that_names_the_setting(
    section: str, key: str, tmp_path: Path
) -> None:
    config = changed(**{section: {key: REFUSED[section][key]}})
    assert_refused(archive(tmp_path, config), f"{section}.{key} ... which asr supports", tmp_path)


def test_every_setting_with_only_one_supported_value_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: dict[str, set[str]] = {}
    for module in ("config", "encoder"):
        monkeypatch.setattr(
            f"asr.apps.convert.nemo.{module}.check",
            lambda settings, section, others, fixed: checked.setdefault(section, set()).update(fixed),
        )
    encoder_config(nemo_config())
    features_config(nemo_config(), "zeros")
    assert checked == {section: set(settings) for section, settings in REFUSED.items()}


def assert_refused(path: Path, message: str, tmp_path: Path) -> None:
    """Check that a one-line error names the model, and that no file is written."""
    before = sorted(tmp_path.rglob("*"))
    with refused(InputError, message) as raised:
        main([str(path), "-o", str(tmp_path / "output")])
    assert str(raised.value).startswith(f"{path}: ")
    assert len(str(raised.value)) < 700
    assert sorted(tmp_path.rglob("*")) == before


def without(name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in tensors().items() if key != name}


class _Evil:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("owned",))


BIAS = "encoder.layers.1.norm_out.bias"
TENSORS: dict[str, tuple[Any, str]] = {
    "one too many": (tensors() | {"encoder.x": torch.zeros(1)}, "encoder.x has none"),
    "one missing": (without(BIAS), f"weights ... {BIAS}"),
    "a wrong shape": (tensors() | {BIAS: torch.zeros(17)}, f"{BIAS}; got (17,)"),
    "NaN": (tensors() | {BIAS: torch.full((DIM,), math.nan)}, f"{BIAS} ... finite numbers"),
    "infinity": (tensors() | {BIAS: torch.full((DIM,), math.inf)}, f"{BIAS} ... finite numbers"),
    "whole numbers": (tensors() | {BIAS: torch.zeros(DIM, dtype=torch.int64)}, f"'{BIAS}' ... such a tensor"),
    "a wider kernel": (
        tensors() | {"decoder.decoder_layers.0.weight": torch.zeros(41, DIM, 3)},
        "41 ... 16 ... config says; got (41",
    ),
    "another filterbank": (
        tensors() | {"preprocessor.featurizer.fb": torch.zeros(1, 20, 129)},
        "preprocessor.featurizer.fb ... compute",
    ),
    "a terabyte of one number": (
        tensors() | {"x": torch.zeros(1).expand(2**40)},
        "contain the numbers",
    ),
    "code": (tensors() | {"x": _Evil()}, "nothing that could"),
    "no numbers": (
        tensors() | {"x": torch.zeros(1, device="meta")},
        "'x' ... none",
    ),
    "a negative variance": (
        tensors() | {"encoder.layers.0.conv.batch_norm.running_var": torch.full((DIM,), -0.5)},
        "running_var ... -0.5",
    ),
    "a list": ([torch.zeros(1)], "hold tensors; got 'list'"),
    "a number for a name": ({3: torch.zeros(1)}, "3 ... such a tensor"),
    "a complex one": (tensors() | {"x": torch.zeros(1, dtype=torch.complex64)}, "'x' ... such a tensor"),
    "a whole module": (torch.nn.Linear(2, 2), "nothing that could"),
}


@pytest.mark.parametrize("state", TENSORS)
def test_tensors_that_do_not_fit_are_refused_in_one_line(
    state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(archive(tmp_path, state=TENSORS[state][0]), TENSORS[state][1], tmp_path)


def packed(content: bytes) -> bytes:
    """Compress the records of a zip file, which torch never does."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for record in old.infolist():
            new.writestr(record.filename, old.read(record))
    return buffer.getvalue()


def replaced(**contents: bytes | None) -> Files:
    """Return the tiny model's files with these contents replaced; None removes a file."""
    names = {"config": "model_config.yaml", "weights": "model_weights.ckpt", "tokenizer": "0123_tokenizer.model"}
    files = nemo_files() | {names[key]: content for key, content in contents.items()}  # type: ignore[dict-item]
    return {name: content for name, content in files.items() if content is not None}


FILES: dict[str, tuple[Files, str]] = {
    "no config": (replaced(config=None), "model_config.yaml ... must exist"),
    "no weights": (replaced(weights=None), "model_weights.ckpt ... model.safetensors"),
    "no tokenizer": (replaced(tokenizer=None), "'0123_tokenizer.model'; got none"),
    "YAML with objects": (replaced(config=b"!!python/object/apply:os.mkdir [owned]"), "YAML ... plain values"),
    "YAML without end": (replaced(config=b"[" * 1_000), "YAML ... plain values"),
    "YAML of no mapping": (replaced(config=b"- 1"), "model_config.yaml; got [1]"),
    "YAML that is none": (replaced(config=b"\xff\x00{"), "YAML ... plain values"),
    "YAML with an impossible date": (replaced(config=b"a: 2001-99-99"), "YAML ... plain values"),
    "YAML too long": (replaced(config=b"#" * (3 << 20)), "have at most ... 2 ... 097"),
    "no pickle": (replaced(weights=b"PK" + bytes(1000)), "torch.save ... it is damaged"),
    "a plain pickle": (replaced(weights=pickle.dumps(_Evil())), "written by torch.save (torch 1.6 or later)"),
    "half a pickle": (replaced(weights=saved(tensors())[:20_000]), "torch.save ... it is damaged"),
    "packed weights": (replaced(weights=packed(saved(tensors()))), "file is compressed"),
    "no SentencePiece": (replaced(tokenizer=b"x"), "SentencePiece ... it is damaged"),
    "another tokenizer": (
        replaced(tokenizer=sentencepiece_model(num_pieces=41)),
        "of the tokenizer",
    ),
}


@pytest.mark.parametrize("files", FILES)
@pytest.mark.parametrize("form", ["plain tar", "folder"])
def test_damaged_files_of_an_archive_are_refused_in_one_line(
    form: str, files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(FORMS[form](tmp_path, FILES[files][0]), FILES[files][1], tmp_path)


def test_a_head_and_a_tokenizer_of_different_sizes_are_refused_in_one_line(tmp_path: Path) -> None:
    config = changed(decoder={"vocabulary": None, "num_classes": -1})
    message = "decoder.decoder_layers.0.weight; got (50"
    assert_refused(archive(tmp_path, config, tensors(49)), message, tmp_path)


GOOD = as_nemo_3(nemo_files())
MEMBERS: dict[str, tuple[list[tuple[tarfile.TarInfo, bytes]], str]] = {
    "a climbing name": (
        [member("./../../tmp/owned", b"x")],
        "path inside ... /tmp/owned",
    ),
    "an absolute name": ([member("/tmp/owned", b"x")], "path inside; got '/tmp/owned'"),
    "a symbolic link": ([member("./x", type=tarfile.SYMTYPE, linkname="/etc/passwd")], "/x ... is a link"),
    "a hard link": ([member("./x", type=tarfile.LNKTYPE, linkname="./model_config.yaml")], "/x ... is a link"),
    "a device": ([member("./x", type=tarfile.CHRTYPE, devmajor=1, devminor=5)], "/x ... plain file"),
    "a pipe": ([member("./x", type=tarfile.FIFOTYPE)], "/x ... plain file"),
    "a sparse file": (
        [member("./x", b"x", pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "1099511627776"})],
        "/x ... plain file",
    ),
    "a name twice": ([member("./model_config.yaml", b"{}")], "each member once; it holds 'model_config.yaml' twice"),
    "too many": ([member(f"./{number}") for number in range(1001)], "at most 1,000 members"),
    "a config too large": ([member("./x_tokenizer.model", bytes(65 << 20))], "have at most ... 67 ... 108"),
    "a header of megabytes": (
        [member("./x", pax_headers={"comment": 3_000_000 * "x"})],
        "header",
    ),
}


@pytest.mark.parametrize("members", MEMBERS)
def test_archive_members_that_nemo_does_not_write_are_refused_in_one_line(members: str, tmp_path: Path) -> None:
    hostile, message = MEMBERS[members]
    with tarfile.open(tmp_path / "a.nemo", "w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in [*GOOD, *hostile]:
            tar.addfile(info, io.BytesIO(content))
    assert_refused(tmp_path / "a.nemo", message, tmp_path)


def test_a_gzip_bomb_is_refused_before_it_uses_memory(tmp_path: Path) -> None:
    zeros = member("./model_weights.ckpt", bytes(100 << 20))
    path = write_tar(tmp_path / "a.nemo", [zeros], "w:gz")
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        assert_refused(path, "20 ... 'model_weights.ckpt'", tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_a_false_size_in_a_header_uses_no_memory(tmp_path: Path) -> None:
    """The headers declare sizes that are too large, or negative; a negative size would move the reader backwards."""
    for size in (1 << 20, 1 << 60, -1024):
        info, _ = member("./model_weights.ckpt", size=size)
        header = info.tobuf(tarfile.GNU_FORMAT)
        (tmp_path / "a.nemo").write_bytes(header + bytes(2048))
        assert_refused(
            tmp_path / "a.nemo",
            "a.nemo",
            tmp_path,
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "another kind"),
        (b"hello" * 1000, "archive"),
        (b"\x1f\x8b" + bytes(1000), "archive"),
        (bytes(10240), "model_config.yaml ... exist"),
    ],
)
def test_a_file_that_is_not_an_archive_is_refused_in_one_line(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.nemo").write_bytes(content)
    assert_refused(tmp_path / "a.nemo", message, tmp_path)


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_an_incomplete_archive_is_refused_in_one_line(mode: str, share: float, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.nemo", as_nemo_3(nemo_files()), mode)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert_refused(path, "a.nemo", tmp_path)


def test_paths_without_a_model_are_refused_in_one_line(tmp_path: Path) -> None:
    assert_refused(tmp_path / "absent", "MODEL ... of its files", tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert_refused(tmp_path / "pipe", "archive ... or a pipe", tmp_path)
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "empty", "model_config.yaml ... exist", tmp_path)
    folder = in_folder(tmp_path / "links", replaced(config=None))
    (folder / "model_config.yaml").symlink_to("/etc/hostname")
    assert_refused(folder, "files ... model_config.yaml", tmp_path)


def test_output_paths_that_are_not_loaded_as_bundles_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path)
    for name in ("model.nemo", "model.ckpt"):
        with refused(InputError, "not end like", cure="--to"):
            main([str(path), "-o", str(tmp_path / name)])
        assert not (tmp_path / name).exists()
    with refused(InputError, "--output ... not replace"):
        main([str(path), "-o", "/"])
    assert main([str(path), "-o", str(tmp_path / "bundle")]) == 0
    with refused(InputError, "/bundle/sub ... /bundle"):
        main([str(path), "-o", str(tmp_path / "bundle" / "sub")])


def test_a_checkpoint_is_refused_with_the_command_that_makes_it_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "step=1.ckpt").touch()
    with refused(InputError, "asr.average", cure="--output-dir FOLDER"):
        main([str(tmp_path / "step=1.ckpt"), "--to", "nemo", "-o", str(tmp_path / "out.nemo")])


def test_the_error_about_a_malicious_file_does_not_repeat_torchs_advice_to_execute_it(tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        main([str(archive(tmp_path, state=tensors() | {"x": _Evil()})), "-o", str(tmp_path / "output")])
    message = str(raised.value)
    assert mentions(message, "code ... GLOBAL posix.mkdir")
    for advice in ("weights_only", "likely succeed", "safe_globals"):
        assert advice not in message


def test_errors_of_the_command_are_reported_in_one_line(tmp_path: Path) -> None:
    path = archive(tmp_path, changed(encoder={"self_attention_model": "abs_pos"}))
    ended = run_module("asr.convert", path, "-o", tmp_path / "output")
    assert not ended.stdout
    check_ended(ended, f"{path} ... encoder.self_attention_model; got 'abs_pos'")


@torch.no_grad()
def log_probs_of(recognizer: Recognizer, waveform: Tensor) -> Tensor:
    """Return the recogniser's log_probs of a waveform, (T', V)."""
    features = recognizer.model.features(waveform)
    encoded = recognizer.model(features[None], torch.tensor([len(features)]))
    return recognizer.frame_head.log_probs(encoded.out)[0]


@pytest.mark.parametrize(
    "config",
    [
        nemo_config(),
        changed(encoder={"xscaling": False, "untie_biases": False}),
        changed(encoder=FAST),
        changed(encoder=FAST | {"use_bias": True, "xscaling": False}),
    ],
)
def test_a_model_saved_by_nemo_gives_nemos_log_probs_and_converts_back(config: dict[str, Any], tmp_path: Path) -> None:
    models = pytest.importorskip("nemo.collections.asr.models", reason="nemo_toolkit is not installed")
    from omegaconf import OmegaConf

    (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model())
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary()))
    config = config | {"tokenizer": {"dir": str(tmp_path), "type": "bpe"}}
    theirs = models.EncDecCTCModelBPE(OmegaConf.create(config)).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in theirs.state_dict().items():
            if tensor.is_floating_point() and not name.startswith("preprocessor."):
                tensor += 0.1 * torch.rand(tensor.shape, generator=generator)
    theirs.save_to(str(tmp_path / "theirs.nemo"))
    waveform = 0.1 * torch.randn(SAMPLE_RATE, generator=generator)

    def log_probs(model: Any) -> Tensor:
        model.preprocessor.featurizer.dither = 0.0
        with torch.no_grad():
            out, lengths, _ = model(input_signal=waveform[None], input_signal_length=torch.tensor([len(waveform)]))
        return out[0, : int(lengths[0])].roll(1, dims=1)  # move the blank to the first position

    expected = log_probs(theirs)
    assert main([str(tmp_path / "theirs.nemo"), "-o", str(tmp_path / "ours")]) == 0
    actual = log_probs_of(load_recognizer(tmp_path / "ours"), waveform)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    back = models.EncDecCTCModelBPE.restore_from(str(tmp_path / "back.nemo"), map_location="cpu").eval()
    torch.testing.assert_close(log_probs(back), expected, rtol=0, atol=1e-4)
    assert back.tokenizer.text_to_ids("the lazy dog") == theirs.tokenizer.text_to_ids("the lazy dog")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("real") / "bundle"
    assert main([str(MODEL), "-o", str(output)]) == 0
    return output


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize("utterance", AUDIO)
def test_a_trained_model_gives_the_log_probs_computed_by_nemo(utterance: str, real: Path) -> None:
    actual = log_probs_of(load_recognizer(real), audio(utterance)).roll(-1, dims=1).numpy()
    assert np.abs(actual - golden(utterance, "logprobs")).max() < 1e-3


@needs_model
@pytest.mark.slow
def test_all_632_tensors_of_a_trained_model_convert_and_convert_back(real: Path, tmp_path: Path) -> None:
    account = from_nemo(MODEL).account
    assert sum(account) == account.taken + account.folded == 632
    assert main([str(real), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    with tarfile.open(tmp_path / "back.nemo") as tar:
        written = torch.load(io.BytesIO(tar.extractfile("./model_weights.ckpt").read()), weights_only=True)  # type: ignore[union-attr]
    theirs = safetensors.torch.load_file(MODEL / "model.safetensors")
    assert len(written) == 632 + 16 + 2
    assert {name: written[name].shape for name in theirs} == {name: tensor.shape for name, tensor in theirs.items()}
    folded = [name for name in theirs if not torch.equal(written[name], theirs[name].float())]
    assert folded == ["encoder.pre_encode.out.bias", "encoder.pre_encode.out.weight"]
    assert_equal(from_nemo(tmp_path / "back.nemo").bundle.weights, read_bundle(real).weights)


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize("batch_seconds", [1, 200], ids=["one by one", "in batches"])
@pytest.mark.parametrize(
    ("corpus", "errors", "words"),
    [("test-clean-mini", 48, 1816), ("dev-mini", 37, 1009), ("test-other-mini", 105, 921)],
)
def test_a_trained_model_has_the_known_number_of_errors(
    corpus: str, errors: int, words: int, batch_seconds: float, real: Path
) -> None:
    """An independent program decoded greedily with these weights, and made this number of errors."""
    from asr.core.data.batch_plan import BatchBounds
    from asr.core.data.manifest import Utterance
    from asr.core.evaluation.result import evaluate
    from asr.core.recognition.inference import Inference
    from asr.core.recognition.recordings import whole_file

    utterances: list[Utterance] = []
    for transcript in sorted((SHARED / "LibriSpeech" / corpus).glob("*/*/*.trans.txt")):
        for line in transcript.read_text().splitlines():
            name, text = line.split(" ", 1)
            utterances.append(replace(whole_file(transcript.parent / f"{name}.flac", name), text=text.lower()))
    options = Inference(batches=BatchBounds(batch_seconds=batch_seconds, max_utterances=64))
    evaluation = evaluate(load_recognizer(real), corpus, utterances, options)
    assert (evaluation.counts.errors, evaluation.counts.reference_length) == (errors, words)


def test_the_error_for_a_bundle_names_the_options_that_convert_it(fluent: Path, tmp_path: Path) -> None:
    with refused(InputError, "this is already", cure="--to"):
        main([str(fluent / "run" / "bundle"), "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_name_of_a_model_on_a_hub_needs_a_scheme(tmp_path: Path) -> None:
    with refused(InputError, "not exist", cure="hf://nvidia/parakeet"):
        main(["nvidia/parakeet", "-o", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_path_below_an_existing_folder_is_not_taken_for_a_name_on_a_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with refused(InputError, "not exist"):
        main(["runs/nope", "-o", str(tmp_path / "out")])
