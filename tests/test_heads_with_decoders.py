"""Every head in conf/head with every decoder in conf/decode: each pair transcribes, or is refused in one line."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.apps.check.decoders import check_transcripts, with_rare_blanks
from asr.base.settings.conf import default_settings
from asr.core.build import build_decoder, build_features, build_model, build_tokenizer, component
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.core.run.settings import read_run_settings
from asr.errors import InputError
from asr.train import train
from tests.conftest import CONF, TINY, resolved, tone_corpus
from tests.refusals import refused
from tests.tones import speak

HEADS, DECODERS = (sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("head", "decode"))
ALONE = {f"{head} alone": [f"head={head}", "head.ctc_weight=0"] for head in ("tdt", "transducer")}  # without CTC
PAIRS = [(head, decode) for head in [*HEADS, *ALONE] for decode in DECODERS]
SMALL = ["encoder.block.dropout=0.1", "data.batch_seconds=5", "num_threads=1", "trainer.check_val_every_n_epoch=1"]
RECORDING = torch.from_numpy(speak("abba cab"))


def chosen(head: str) -> list[str]:
    """Return the overrides that choose a head."""
    return ALONE.get(head, [f"head={head}"])


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Reduce the layers of the head and the hypotheses of the decoder in a config; return the config."""
    config["head"].update({key: 1 for key in ("num_layers",) if key in config["head"]})
    config["decode"].update({key: 4 for key in ("beam_size",) if key in config["decode"]})
    return config


def lacking(head: Any, decode: dict[str, Any]) -> list[str]:
    """List the parts that the decoder needs and this head lacks."""
    needs = component("decode", decode).func.needs  # type: ignore[attr-defined]
    return [need for need in needs if getattr(head, need, None) is None]


def untrained(head: str, decode: str) -> tuple[dict[str, Any], Model]:
    small_net = [*TINY, "encoder.num_layers=4", "encoder.dim=16", "features/normalize=utterance_cmvn"]
    config = small(resolved(*small_net, *chosen(head), f"decode={decode}"))
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abc cab"])
    return config, build_model(config, tokenizer, features).eval()


@pytest.mark.parametrize("head", [*HEADS, *ALONE])
def test_a_decoder_is_built_or_refused_according_to_its_needs(head: str) -> None:
    config, model = untrained(head, "greedy")
    for name in DECODERS:
        config["decode"] = default_settings("decode", name)
        if not lacking(model.head, config["decode"]):
            assert build_decoder(config, model).max_hypotheses >= 1
            continue
        need, head_name = lacking(model.head, config["decode"])[0], config["head"]["name"]
        with refused(InputError, f"decode={name} ... {need} ... head={head_name}"):
            build_decoder(config, model)


OWN = {
    "ctc_attention": ("joint_beam", "attention_rescoring"),
    "tdt": ("transducer_greedy", "transducer_beam"),
    "tdt alone": ("transducer_greedy", "transducer_beam"),
    "transducer": ("transducer_greedy", "transducer_beam", "monotonic_beam"),
    "transducer alone": ("transducer_greedy", "transducer_beam", "monotonic_beam"),
}


FAST = [("ctc_attention", "joint_beam"), ("transducer", "transducer_greedy"), ("tdt", "transducer_beam")]


@pytest.mark.parametrize(
    ("head", "decode"),
    [pytest.param(*pair, marks=[pytest.mark.slow] * (pair not in FAST)) for pair in PAIRS],
)
def test_each_pair_of_head_and_decoder_transcribes_in_any_batch_and_in_bfloat16(head: str, decode: str) -> None:
    config, model = untrained(head, decode)
    if lacking(model.head, config["decode"]):
        pytest.skip("the head lacks a part that the decoder needs")
    with_rare_blanks(model)
    recognizer = Recognizer(model, build_decoder(config, model), UNCALIBRATED)
    check_transcripts(recognizer, RECORDING)
    recognizer.recording_encoder.precision = torch.bfloat16  # also for matrix products in the search
    assert recognizer.transcribe([RECORDING], sample_rate=16_000)[0].words


@pytest.mark.slow
@pytest.mark.parametrize(("head", "decode"), PAIRS)
def test_a_run_with_each_head_and_decoder_resumes_exactly_and_its_bundle_transcribes(
    head: str, decode: str, tones: Path, tmp_path: Path
) -> None:
    common = [*TINY, *SMALL, *tone_corpus(tones), "encoder.num_layers=4", *chosen(head), f"decode={decode}"]
    if lacking(untrained(head, decode)[1].head, default_settings("decode", decode)):
        pytest.skip("the head lacks a part that the decoder needs")
    for name, steps in (("whole", [8]), ("parts", [3, 8])):
        for number in steps:
            until = [f"trainer.max_steps={number}", "resume.allow=[trainer.max_steps]"]
            train(read_run_settings(small(resolved(*common, *until, f"run_dir={tmp_path / name}"))))
    whole, parts = (load_file(tmp_path / name / "bundle" / "weights.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(weights, parts[name]) for name, weights in whole.items())
    recognizer = load_recognizer(tmp_path / "whole")
    assert recognizer.decode.description == load_recognizer(tmp_path / "parts").decode.description
    check_transcripts(recognizer, RECORDING)
