"""A model of NeMo with a tokenizer for each language: one language is cut out, and is an ordinary model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import Tensor

from asr.apps.convert.foreign import Choices
from asr.apps.convert.nemo.convert import from_nemo
from asr.apps.convert.nemo.language import ROWS, with_language
from asr.convert import main
from asr.core.checkpoint.bundle import read_bundle
from asr.errors import InputError
from tests.conftest import SHARED
from tests.nemo import nemo_config, saved, sentencepiece_model, sentencepiece_model_of, tensors, vocabulary
from tests.refusals import refused
from tests.test_convert import assert_equal
from tests.test_nemo_transducers import config, state

OTHER = ["<unk>", "▁", "d", "e", "▁de", "ß"]
SIZES = {"de": len(OTHER), "en": len(vocabulary())}
MODELS = {"de": sentencepiece_model_of(OTHER), "en": sentencepiece_model()}
TOTAL = sum(SIZES.values())
KINDS = ["ctc", "rnnt", "tdt", "hybrid tdt"]


def settings_of(kind: str, size: int, tokenizer: Mapping[str, Any]) -> dict[str, Any]:
    """Return NeMo's config for a number of tokens, without lists of tokens."""
    made = nemo_config() if kind == "ctc" else config(kind)
    made = made | {"tokenizer": tokenizer}
    if kind != "ctc":
        made["decoder"]["vocab_size"] = size
        made["joint"] |= {"num_classes": size, "vocabulary": None}
    for section in [made["decoder"]] if kind == "ctc" else [made["aux_ctc"]["decoder"]] if "aux_ctc" in made else []:
        section |= {"num_classes": size, "vocabulary": None}
    return made


def folder_of(folder: Path, settings: Mapping[str, Any], weights: Mapping[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "model_config.yaml").write_text(yaml.safe_dump(dict(settings), allow_unicode=True))
    (folder / "model_weights.ckpt").write_bytes(saved(dict(weights)))
    for language, model in MODELS.items():
        (folder / f"{language}_tokenizer.model").write_bytes(model)
    return folder


def weights_of(kind: str) -> dict[str, Tensor]:
    return tensors(TOTAL) if kind == "ctc" else state(kind, num_pieces=TOTAL)


def section_of(language: str) -> dict[str, Any]:
    return {"dir": ".", "type": "bpe", "model_path": f"nemo:{language}_tokenizer.model"}


def aggregate(folder: Path, kind: str) -> Path:
    langs = {language: section_of(language) for language in SIZES}
    return folder_of(folder, settings_of(kind, TOTAL, {"type": "agg", "dir": None, "langs": langs}), weights_of(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("language", SIZES)
def test_one_language_is_the_model_with_the_rows_of_its_tokens(
    language: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = 0 if language == "de" else SIZES["de"]
    rows = [*range(first, first + SIZES[language])]
    own = {
        name: weight[[*rows, *range(TOTAL, len(weight))]] if ROWS.fullmatch(name) else weight
        for name, weight in weights_of(kind).items()
    }
    alone = folder_of(tmp_path / "alone", settings_of(kind, SIZES[language], section_of(language)), own)
    expected = from_nemo(alone).bundle
    folder = aggregate(tmp_path / "both", kind)
    assert main([str(folder), "--language", language, "-o", str(tmp_path / "ours")]) == 0
    assert f"{SIZES[language]} tokens of {language}" in capsys.readouterr().out
    bundle = read_bundle(tmp_path / "ours")
    assert (bundle.config, bundle.files) == (expected.config, expected.files)
    assert_equal(bundle.weights, expected.weights)
    assert main([str(tmp_path / "ours"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0


def test_the_language_must_be_one_of_the_models(tmp_path: Path) -> None:
    folder = aggregate(tmp_path / "both", "ctc")
    for choice, got in (([], "none"), (["--language", "fr"], "'fr'")):
        with refused(InputError, f"--language ... de, en ... got {got}"):
            main([str(folder), *choice, "-o", str(tmp_path / "ours")])
    plain = folder_of(tmp_path / "plain", nemo_config() | {"tokenizer": section_of("en")}, tensors())
    with refused(InputError, "--language; got 'en'"):
        from_nemo(plain, Choices(language="en"))


def test_a_head_without_rows_for_all_languages_is_refused(tmp_path: Path) -> None:
    langs = {language: section_of(language) for language in SIZES}
    settings = settings_of("ctc", TOTAL, {"type": "agg", "langs": langs})
    folder = folder_of(tmp_path / "both", settings, tensors(TOTAL - 1))
    with refused(InputError, f"decoder.decoder_layers.0 ... {TOTAL} ... {TOTAL}"):
        main([str(folder), "--language", "de", "-o", str(tmp_path / "ours")])


def test_the_tokens_of_a_published_config_are_those_of_its_languages(tmp_path: Path) -> None:
    path = SHARED.parent / "models" / "published_2" / "nemo" / "fc_hybrid_agg.small.yaml"
    if not path.is_file():
        pytest.skip("needs ../shared/models/published_2")
    published = yaml.safe_load(path.read_text())
    total = published["joint"]["num_classes"]
    langs = published["tokenizer"]["langs"]
    sizes = dict(zip(langs, (400, 500, total - 900), strict=True))
    files = {
        each["model_path"].removeprefix("nemo:"): sentencepiece_model_of(["<unk>", *(f"▁{n}" for n in range(1, size))])
        for each, size in zip(langs.values(), sizes.values(), strict=True)
    }
    cut = with_language(published, {}, files, tmp_path, "en")
    assert cut.config["tokenizer"] == langs["en"]
    assert cut.config["decoder"]["vocab_size"] == cut.config["joint"]["num_classes"] == sizes["en"]
    assert cut.config["aux_ctc"]["decoder"]["num_classes"] == sizes["en"]
