"""Bundles of earlier public formats load; those of formats that were never released are refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from asr.core.checkpoint.formats import FORMAT
from asr.core.checkpoint.load import load_recognizer
from asr.errors import InputError
from tests.bundles.make import log_probs
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
