"""Bundles of earlier public formats load; those of formats that were never released are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from asr.base.settings.conf import default_settings
from asr.core.build import component
from asr.core.checkpoint.bundle import read_bundle
from asr.core.checkpoint.formats import FORMAT, in_blocks, of_today
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from tests.bundles.make import in_format_11, log_probs
from tests.conftest import KINDS, resolved
from tests.refusals import refused

HERE = Path(__file__).parent / "bundles"
FIRST = 11  # the first public format


@pytest.mark.parametrize("number", range(FIRST, FORMAT + 1))
def test_a_bundle_of_each_format_gives_the_log_probs_stored_with_it(number: int) -> None:
    config = json.loads((HERE / f"format-{number}" / "config.json").read_text())
    assert config["format"] == number
    expected = torch.tensor(json.loads((HERE / f"format-{number}.json").read_text()))
    # The sound is two tones. Bins between them contain only rounding errors of the Fourier transform, which differ
    # between processors: by 0.02 in the features, and by 1.8e-4 in the log_probs.
    torch.testing.assert_close(log_probs(HERE / f"format-{number}"), expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("number", range(FIRST, FORMAT + 1))
def test_an_adapter_of_each_format_with_its_base_gives_the_log_probs_stored_with_it(number: int) -> None:
    base, expected = HERE / f"format-{number}", torch.tensor(json.loads((HERE / f"adapter-{number}.json").read_text()))
    torch.testing.assert_close(log_probs(HERE / f"adapter-{number}", base), expected, rtol=0, atol=1e-3)
    assert (log_probs(base) - expected).abs().max() > 0.01


def test_an_encoder_of_format_11_has_the_settings_of_its_blocks_in_a_section_of_their_own() -> None:
    old = json.loads((HERE / "format-11" / "config.json").read_text())["encoder"]
    bundle = read_bundle(HERE / "format-11")
    encoder = bundle.config["encoder"]
    block = encoder.pop("block")
    assert (encoder.pop("last_norm"), block.pop("name")) == (False, "conformer_block")
    assert block.keys().isdisjoint(encoder)
    assert encoder | block == old
    assert read_bundle(HERE / f"format-{FORMAT}").config["encoder"].keys() == {*encoder, "block", "last_norm"}


ENCODERS_OF_11 = {  # encoder: its block, the encoder of today, and whether a norm follows the last block
    "conformer": ("conformer_block", "conformer", False),
    "conformer_streaming": ("streaming_block", "conformer_streaming", False),
    "transformer": ("transformer_block", "transformer", None),
    "transformer_xl": ("transformer_xl_block", "transformer_xl", None),
    "conformer_adapter": ("conformer_block", "conformer_adapter", False),
    "strided_conformer": ("strided_block", "strided_conformer", False),
    "weighted_conformer": ("weighted_block", "conformer", True),
}


@pytest.mark.parametrize("name", ENCODERS_OF_11)
def test_the_settings_of_each_encoder_of_format_11_build_the_encoder_of_today(name: str) -> None:
    block, today, last_norm = ENCODERS_OF_11[name]
    [conf] = [conf for conf, kind in sorted(KINDS.items()) if kind == (today, block)][-1:]
    settings = resolved(f"encoder={conf}")["encoder"]
    converted = in_blocks(in_format_11(settings) | {"name": name})
    assert converted == settings
    assert converted.get("last_norm") is last_norm
    with torch.device("meta"):
        component("encoder", converted)(80)


FBANK_SETTINGS = ("snip_edges", "high_hertz", "full_scale")


@pytest.mark.parametrize("name", ["fbank", "mirrored_fbank"])
def test_features_of_format_12_get_the_settings_that_their_class_had(name: str) -> None:
    """Kaldi's and lhotse's filterbanks were two classes."""
    today = default_settings("features", name)
    kaldi = {"snip_edges": True, "high_hertz": 0, "full_scale": 32768}
    if name == "fbank":
        today |= kaldi  # the defaults may change, those of old bundles may not
    old = {key: value for key, value in today.items() if key not in FBANK_SETTINGS} | {"name": name}
    for number in (11, 12):
        assert of_today({"format": number, "features": dict(old)}, "here")["features"] == today
    other = {"name": "slaney_fbank", "pad_mode": "zeros"}
    assert of_today({"format": 12, "features": other}, "here")["features"] == other


@pytest.mark.parametrize("name", ["transducer", "tdt"])
def test_a_transducer_of_format_13_has_no_fast_emit(name: str) -> None:
    today = default_settings("head", name) | {"fast_emit": 0.0}
    old = {key: value for key, value in today.items() if key != "fast_emit"}
    assert of_today({"format": 13, "head": dict(old)}, "here")["head"] == today
    assert of_today({"format": 13, "head": {"name": "ctc"}}, "here")["head"] == {"name": "ctc"}


def test_an_encoder_of_a_package_keeps_its_settings() -> None:
    encoder = {"name": "mine", "dim": 8, "dropout": 0.1, "activation": {"name": "relu"}}
    assert in_blocks(dict(encoder)) == encoder


@pytest.mark.parametrize("number", [FORMAT + 1, -1, float(FORMAT), str(FORMAT), None, True])
def test_an_unknown_format_number_is_refused(number: object, tmp_path: Path) -> None:
    with refused(InputError, f"format ... {FORMAT}", got=number):
        load_recognizer(numbered(tmp_path, number))


@pytest.mark.parametrize("number", [0, 9, 10])
def test_a_format_that_was_never_released_is_refused_with_the_command_that_converts_it(
    number: int, tmp_path: Path
) -> None:
    with refused(InputError, f"format ... {FORMAT} ... recipes.convert.bundle", got=number):
        load_recognizer(numbered(tmp_path, number))


def numbered(folder: Path, number: object) -> Path:
    """Copy the stored bundle and give it another format number."""
    bundle = folder / "bundle"
    shutil.copytree(HERE / f"format-{FORMAT}", bundle)
    config = json.loads((bundle / "config.json").read_text())
    (bundle / "config.json").write_text(json.dumps(config | {"format": number}))
    return bundle
