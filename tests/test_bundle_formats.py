"""Bundles of earlier formats still load, and give the log_probs that were stored when they were made."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.checkpoint.formats import FORMAT, of_today
from asr.checkpoint.load import load_recognizer
from asr.errors import InputError
from tests.bundles.make import log_probs
from tests.conftest import resolved
from tests.refusals import refused

HERE = Path(__file__).parent / "bundles"


@pytest.mark.parametrize("number", range(FORMAT + 1))
def test_a_bundle_of_each_format_gives_the_log_probs_stored_with_it(number: int) -> None:
    config = json.loads((HERE / f"format-{number}" / "config.json").read_text())
    assert config.get("format", 0) == number
    expected = torch.tensor(json.loads((HERE / f"format-{number}.json").read_text()))
    # The sound is two tones. Bins between them contain only rounding errors of the Fourier transform, which differ
    # between processors: by 0.02 in the features, and by 1.8e-4 in the log_probs.
    torch.testing.assert_close(log_probs(HERE / f"format-{number}"), expected, rtol=0, atol=1e-3)


def test_an_adapter_of_format_9_with_its_base_gives_the_log_probs_stored_with_it() -> None:
    expected = torch.tensor(json.loads((HERE / "adapter-9.json").read_text()))
    torch.testing.assert_close(log_probs(HERE / "adapter-9", HERE / "format-9"), expected, rtol=0, atol=1e-3)
    assert (log_probs(HERE / "format-9") - expected).abs().max() > 0.01


@pytest.mark.parametrize(
    ("was", "today"),
    [
        ({"normalizer": "verbatim"}, {"normalizer": "as_written"}),
        ({"normalizer": "basic"}, {"normalizer": "basic_1"}),
        (
            {"features": {"normalize": {"name": "training_set", "min_std": 1.0}}},
            {"features": {"normalize": {"name": "global_cmvn", "min_std": 1.0}}},
        ),
        ({"features": {"normalize": {"name": "per_utterance"}}},) * 2,
    ],
)
def test_settings_that_format_3_renamed_are_read_under_their_new_names(
    was: dict[str, Any], today: dict[str, Any]
) -> None:
    assert of_today({"format": 2, **was}, "a bundle") == today


def test_up_to_format_3_the_fusion_settings_were_settings_of_the_search() -> None:
    today = resolved("decode=joint_beam")["decode"]
    renamed = {"word_insertion_bonus": "word_score"}  # format 6 renamed this setting
    new = ("name", "spelling")
    fusion = {renamed.get(key, key): value for key, value in today["fusion"].items() if key not in new}
    written = {key: value for key, value in today.items() if key != "fusion"} | fusion
    assert of_today({"format": 3, "decode": written}, "config.json") == {"decode": today}
    assert of_today({"format": 3, "decode": {"name": "greedy"}}, "config.json") == {"decode": {"name": "greedy"}}


def test_up_to_format_4_a_streaming_encoder_had_no_right_context() -> None:
    nothing = ["encoder.right_frames=0", "encoder.training_right_frames=[0]"]
    today = resolved("encoder=conformer_streaming_s", *nothing)["encoder"]
    written = {key: value for key, value in today.items() if "right_frames" not in key}
    assert of_today({"format": 4, "encoder": written}, "config.json") == {"encoder": today}


def test_up_to_format_5_the_word_insertion_bonus_was_called_word_score() -> None:
    today = resolved("decode=joint_beam")["decode"]
    fusion = {("word_score" if key == "word_insertion_bonus" else key): value for key, value in today["fusion"].items()}
    assert "word_score" in fusion
    assert of_today({"format": 5, "decode": today | {"fusion": fusion}}, "config.json") == {"decode": today}
    assert of_today({"format": 6, "decode": today}, "config.json") == {"decode": today}


@pytest.mark.parametrize(("number", "name"), [*((number, "basic_1") for number in range(10)), (10, "basic")])
def test_a_bundle_made_before_format_10_keeps_the_normalizer_that_it_was_trained_with(number: int, name: str) -> None:
    assert of_today({"format": number, "normalizer": "basic"}, "config.json") == {"normalizer": name}
    if number < 3:  # the stored bundles of these formats have this normaliser
        assert load_recognizer(HERE / f"format-{number}").model.normalize("don\u00b4t") == "don \u0301t"


@pytest.mark.parametrize("predictor", ["lstm", "gru"])
def test_up_to_format_7_every_joiner_used_tanh_and_every_embedding_was_trained(predictor: str) -> None:
    today = resolved("head=transducer", f"head/predictor={predictor}")["head"]
    network = {key: value for key, value in today["predictor"].items() if key != "trains_blank"}
    written = {key: value for key, value in today.items() if key != "joint_activation"} | {"predictor": network}
    assert of_today({"format": 7, "head": written}, "config.json") == {"head": today}
    assert of_today({"format": 7, "head": {"name": "ctc"}}, "config.json") == {"head": {"name": "ctc"}}


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("encoder", ["conformer_s", "transformer"])
def test_an_encoder_of_an_older_format_gets_settings_for_the_parts_that_were_not_yet_configurable(
    encoder: str, number: int
) -> None:
    today = resolved(f"encoder={encoder}")["encoder"]
    written = {key: value for key, value in today.items() if key not in ("activation", "residual")}
    assert of_today({"format": number, "encoder": written}, "config.json") == {"encoder": today}


@pytest.mark.parametrize("number", [FORMAT + 1, -1, 1.0, "1", None, True])
def test_an_unknown_format_number_is_refused(number: object, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(HERE / f"format-{FORMAT}", bundle)
    config = json.loads((bundle / "config.json").read_text())
    (bundle / "config.json").write_text(json.dumps(config | {"format": number}))
    with refused(InputError, f"format ... {FORMAT}", got=number):
        load_recognizer(bundle)


def test_up_to_format_6_all_unknown_words_had_one_score() -> None:
    today = resolved("decode=beam")["decode"]
    fusion = {key: value for key, value in today["fusion"].items() if key != "spelling"}
    assert of_today({"format": 6, "decode": today | {"fusion": fusion}}, "config.json") == {"decode": today}
    assert of_today({"format": 6, "decode": {"name": "greedy"}}, "config.json") == {"decode": {"name": "greedy"}}
