"""Bundles that contain the files of their decoder can be written and moved, and are refused if they are unsafe."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.base.settings.conf import default_settings
from asr.base.system.learnt import MAX_BYTES
from asr.components.decode.beam import Beam
from asr.core.checkpoint.bundle import read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer, write_bundle
from asr.core.decoder_choice import with_decoder
from asr.errors import InputError
from asr.ngram import main as ngram
from tests.fusion import search_config
from tests.refusals import mentions, refused
from tests.test_average import save

FILES = {"lm": "lm.arpa", "lexicon": "lexicon.txt", "hotwords": "hotwords.txt"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files for a beam search, with names that differ from those in a bundle."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "text").write_text("ab ba\nba cab\n")
    ngram([str(folder / "text"), "-o", str(folder / "words.arpa"), "--order", "2"])
    (folder / "words").write_text("ab\nba\ncab\n")
    (folder / "names").write_text("cab ba\n")
    return {"lm": folder / "words.arpa", "lexicon": folder / "words", "hotwords": folder / "names"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("checkpoint") / "step=1.ckpt", texts=["abc ba"])


@pytest.fixture
def bundle(checkpoint: Path, files: dict[str, Path], tmp_path: Path) -> Path:
    """A bundle of an untrained network, with beam search and all its files, written as in training."""
    settings = search_config("beam", **{key: str(path) for key, path in files.items()})
    write_bundle(tmp_path / "bundle", [checkpoint], "card", settings)
    return tmp_path / "bundle"


def with_setting(bundle: Path, key: str, value: Any) -> None:
    config = json.loads((bundle / "config.json").read_text())
    config["decode"]["fusion"][key] = value
    (bundle / "config.json").write_text(json.dumps(config))


def test_a_bundle_contains_the_files_of_its_decoder_and_can_be_moved(
    bundle: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    for key, name in FILES.items():
        assert (bundle / name).read_bytes() == files[key].read_bytes()
    fusion = json.loads((bundle / "config.json").read_text())["decode"]["fusion"]
    assert {key: fusion[key] for key in FILES} == FILES, "the bundle contains no path of the machine that wrote it"
    moved = bundle.rename(tmp_path / "elsewhere")
    recognizer = load_recognizer(moved)
    assert isinstance(recognizer.decode, Beam)
    assert recognizer.decode.fusion.has_model
    assert recognizer.decode.fusion.lexicon is not None
    assert recognizer.decode.biasing.phrases == ["cab ba"]
    [transcript] = recognizer.transcribe([torch.randn(16000)], sample_rate=16_000)
    assert {word.text for word in transcript.words} <= {"ab", "ba", "cab"}


def test_equal_bundles_have_equal_bytes(bundle: Path, checkpoint: Path, files: dict[str, Path]) -> None:
    settings = search_config("beam", **{key: str(path) for key, path in files.items()})
    write_bundle(bundle.with_name("again"), [checkpoint], "card", settings)
    for file in bundle.iterdir():
        assert (bundle.with_name("again") / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../lm.arpa", "../../etc/passwd", "./lm.arpa", "config.json", "weights.safetensors", "", 7, ["x"]],
)
def test_an_untrusted_bundle_can_name_only_its_own_files(bundle: Path, key: str, path: Any) -> None:
    (bundle.parent / "lm.arpa").write_bytes((bundle / "lm.arpa").read_bytes())
    with_setting(bundle, key, path)
    with refused(InputError, f"{bundle} ... decode.fusion.{key} ... {FILES[key]}"):
        load_recognizer(bundle)


@pytest.mark.parametrize("key", FILES)
def test_a_bundle_that_names_an_absent_file_is_refused(bundle: Path, key: str) -> None:
    (bundle / FILES[key]).unlink()
    with refused(InputError, f"decode.fusion.{key} ... {FILES[key]}"):
        load_recognizer(bundle)


@pytest.mark.parametrize("name", [*FILES.values(), "characters.json", "weights.safetensors", "notes.txt"])
def test_a_link_that_leads_out_of_a_bundle_is_refused(bundle: Path, tmp_path: Path, name: str) -> None:
    """asr.tune would copy the link's target into the bundle, which may be published."""
    outside = tmp_path / "private"
    (bundle / name).touch()
    (bundle / name).rename(outside)
    (bundle / name).symlink_to(outside)
    with refused(InputError, f"{name} ... is a link"):
        load_recognizer(bundle)
    (bundle / name).unlink()
    (bundle / name).symlink_to(name)
    with refused(InputError, str(bundle)):
        load_recognizer(bundle)


def test_a_bundle_can_be_reached_through_a_link(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle)
    (bundle / "copy.txt").symlink_to("characters.json")
    assert load_recognizer(tmp_path / "link").model.tokenizer.vocab_size > 0


@pytest.mark.parametrize("content", [b"mmap lm http://kheafield.com/code format version 5\n\0", b"\x1f\x8b\x08", b""])
def test_a_bundle_with_a_binary_language_model_is_refused_under_any_file_name(
    bundle: Path, checkpoint: Path, tmp_path: Path, content: bytes
) -> None:
    """KenLM maps a binary into memory without checks, and trusts every offset in it."""
    (bundle / "lm.arpa").write_bytes(content)
    with refused(InputError, "lm.arpa ... ARPA"):
        load_recognizer(bundle)
    settings = search_config("beam", lm=str(bundle / "lm.arpa"))
    with refused(InputError, "lm.arpa ... ARPA"):
        write_bundle(tmp_path / "new", [checkpoint], "card", settings)
    assert not (tmp_path / "new").exists()


def test_paths_in_a_checkpoint_are_not_followed(
    files: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The paths are valid only on the machine that trained the model; an untrusted checkpoint could name any file."""
    overrides = ["decode=beam", *(f"decode.fusion.{key}={path}" for key, path in files.items())]
    checkpoint = save(tmp_path / "step=1.ckpt", *overrides, texts=["abc ba"])
    write_bundle(tmp_path / "trained", [checkpoint], "card", default_settings("decode", "beam"))
    assert caplog.text == "", "training has the files and needs no warning"
    recognizer = load_recognizer(checkpoint)
    named = ", ".join(f"{key}={files[key]}" for key in ("lm", "lexicon", "hotwords"))
    assert mentions(caplog.text, f"{checkpoint} ... {named}")
    assert isinstance(recognizer.decode, Beam)
    assert not recognizer.decode.fusion.has_model
    assert recognizer.decode.fusion.lexicon is None
    assert not recognizer.decode.biasing.phrases
    write_bundle(tmp_path / "bundle", [checkpoint], "card")  # as asr.average does
    assert not any((tmp_path / "bundle" / name).exists() for name in FILES.values())
    with_lm = {"fusion": {"lm": str(files["lm"])}}
    assert load_recognizer(checkpoint, decode=with_lm).decode.fusion.has_model, (
        "a language model given by the user is loaded"
    )


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"slope": "x", "intercept": 1}', '{"slope": 1}', "null", '{"slope": NaN, "intercept": 0}']
)
def test_a_damaged_calibration_is_reported_in_one_line(bundle: Path, content: str) -> None:
    (bundle / "confidence.json").write_text(content)
    with refused(InputError, "confidence.json ... it is damaged"):
        load_recognizer(bundle)


def test_the_older_bundle_remains_if_a_file_of_the_decoder_cannot_be_read(
    bundle: Path, checkpoint: Path, files: dict[str, Path], tmp_path: Path
) -> None:
    before = {path.name: path.read_bytes() for path in bundle.iterdir()}
    paths = {key: str(path) for key, path in files.items()} | {"lexicon": str(tmp_path / "gone")}
    settings = search_config("beam", **paths)
    with refused(InputError, f"{bundle} ... {paths['lexicon']}"):
        write_bundle(bundle, [checkpoint], "card", settings)
    assert {path.name: path.read_bytes() for path in bundle.iterdir()} == before
    assert sorted(os.listdir(bundle.parent)) == ["bundle"]


def test_reading_and_rewriting_a_bundle_changes_nothing(bundle: Path, tmp_path: Path) -> None:
    shutil.copytree(bundle, tmp_path / "copy")
    contents = read_bundle(bundle)
    replace_bundle(bundle, contents, instead_of=contents)
    for file in (tmp_path / "copy").iterdir():
        assert (bundle / file.name).read_bytes() == file.read_bytes()
    assert len(list(bundle.iterdir())) == len(list((tmp_path / "copy").iterdir()))


@pytest.mark.parametrize(
    ("own", "given", "name"),
    [
        ("joint_beam", {"fusion": {"lm_weight": 0.7}}, "joint_beam"),
        ("greedy", {"fusion": {"lm_weight": 0.7}}, "beam"),
        ("attention_rescoring", {"name": "beam", "fusion": {"lm_weight": 0.7}}, "beam"),
        ("greedy", {}, "greedy"),
    ],
)
def test_settings_without_a_decoder_name_apply_to_the_models_decoder_or_else_to_beam_search(
    own: str, given: dict[str, Any], name: str
) -> None:
    config = {"head": default_settings("head", "ctc"), "decode": default_settings("decode", own)}
    config["decode"].update({"beam_size": 3} if own != "greedy" else {})
    expected = config["decode"] if name == own else default_settings("decode", name)
    fused = {"fusion": expected["fusion"] | given["fusion"]} if "fusion" in given else {}
    assert with_decoder(config, given)["decode"] == {**expected, **given, **fused}


@pytest.mark.parametrize(
    ("given", "beam_size"),
    [
        ({"fusion": {"hotwords": "names.txt", "hotword_score": 2.0}}, 4),
        ({"fusion": {"hotwords": "names.txt"}, "beam_size": 16}, 16),
        ({"fusion": {"hotwords": "names.txt", "lm": "lm.arpa"}}, 16),
        ({"fusion": {"hotwords": "names.txt"}, "name": "beam"}, 16),
    ],
)
def test_hotwords_alone_need_few_hypotheses(given: dict[str, Any], beam_size: int) -> None:
    greedy = {"head": default_settings("head", "ctc"), "decode": default_settings("decode", "greedy")}
    assert with_decoder(greedy, given)["decode"]["beam_size"] == beam_size


def test_a_bundle_with_the_removed_label_priors_is_refused_and_can_be_used_with_another_decoder(bundle: Path) -> None:
    config = json.loads((bundle / "config.json").read_text())
    config["decode"] |= {"name": "prior_beam", "label_priors": [-1.0], "prior_weight": 0.1}
    (bundle / "config.json").write_text(json.dumps(config))
    with refused(InputError, "decode ... prior_beam", cure="--decode beam"):
        load_recognizer(bundle)
    assert isinstance(load_recognizer(bundle, decode={"name": "beam"}).decode, Beam)


def test_a_bundle_with_the_removed_neural_rescoring_loads_with_its_search_and_says_so(
    bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, model = bundle / "config.json", bundle / "language-model.safetensors"
    config, expected = json.loads(path.read_text()), read_bundle(bundle).config
    search = {"first": config["decode"], "language_model": model.name, "rescoring_weight": 0.3}
    path.write_text(json.dumps(config | {"decode": {"name": "lm_rescoring", **search}}))
    with model.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert isinstance(load_recognizer(bundle).decode, Beam)
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert mentions(warning.getMessage(), "lm_rescoring ... removed")
    contents = read_bundle(bundle)
    assert (contents.config, contents.files.keys() & {model.name}) == (expected, set())
    replace_bundle(bundle, contents, instead_of=contents)
    assert not model.exists()
    path.write_text(json.dumps(config | {"decode": {"name": "lm_rescoring"}}))
    with refused(InputError, "decode ... name"):
        load_recognizer(bundle)
