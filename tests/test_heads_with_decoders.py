"""Every head in conf/head with every decoder in conf/decode: they transcribe, or are refused in a line."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from asr.build import build_features, build_recognizer, build_tokenizer, component
from asr.checkpoint.load import load_recognizer
from asr.errors import InputError
from asr.recognition.recognizer import Recognizer
from asr.train import train
from tests.conftest import CONF, TINY, resolved, tone_corpus
from tests.tones import speak

PAIRS = [
    (head.stem, decode.stem)
    for head in sorted((CONF / "head").glob("*.yaml"))
    for decode in sorted((CONF / "decode").glob("*.yaml"))
]
SMALL = ["encoder.dropout=0.1", "data.batch_seconds=5", "num_threads=1", "trainer.check_val_every_n_epoch=1"]
RECORDING = torch.from_numpy(speak("abba cab"))


def small(config: dict[str, Any]) -> dict[str, Any]:
    """The same with fewer layers in the head, and fewer hypotheses, where it has any to choose."""
    config["head"].update({key: 1 for key in ("num_layers",) if key in config["head"]})
    config["decode"].update({key: 4 for key in ("beam_size",) if key in config["decode"]})
    return config


def fits(config: dict[str, Any]) -> bool:
    """Whether the head has what the decoder needs."""
    head = component("head", config["head"])(8, 4, 5)
    needs = component("decode", config["decode"]).func.needs  # type: ignore[attr-defined]
    return all(getattr(head, need, None) is not None for need in needs)


def check_transcripts(recognizer: Recognizer) -> None:
    """Words of a recording lie in it, one behind the other, as sure as can be; the same in any batch; none in nothing.

    A recording that is longer than what the decoder searches in at once is no other.
    """
    recognizer.decode.max_seconds = min(recognizer.decode.max_seconds or 2.0, 2.0)
    recordings = [RECORDING, RECORDING[:9_000], torch.zeros(0), torch.cat([RECORDING, torch.zeros(8_000)] * 3)]
    transcripts = recognizer.transcribe(recordings)
    assert transcripts[2].text == ""
    for recording, transcript in zip(recordings, transcripts, strict=True):
        starts = [word.start for word in transcript.words]
        assert starts == sorted(starts)
        assert all(0 <= word.start < word.end <= len(recording) / 16_000 for word in transcript.words)
        assert all(0 <= word.confidence <= 1 for word in transcript.words)
        [alone] = recognizer.transcribe([recording])
        assert alone.text == transcript.text


@pytest.mark.parametrize(("head", "decode"), PAIRS)
def test_a_pair_transcribes_or_is_refused_in_a_line(head: str, decode: str) -> None:
    config = small(
        resolved(*TINY, "encoder.num_layers=4", "features/normalize=per_utterance", f"head={head}", f"decode={decode}")
    )
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abc cab"])
    if not fits(config):
        with pytest.raises(InputError, match=rf"^decode={decode} must have a head with a \w+; head={head} has none\.$"):
            build_recognizer(config, tokenizer, features)
        return
    recognizer = build_recognizer(config, tokenizer, features)
    recognizer.model.eval()
    check_transcripts(recognizer)
    recognizer.encoder.precision = torch.bfloat16  # of the net's products, those of the search among them
    assert recognizer.transcribe([RECORDING])[0].duration == len(RECORDING) / 16_000


@pytest.mark.slow
@pytest.mark.parametrize(("head", "decode"), PAIRS)
def test_a_pair_trains_resumes_exactly_and_its_bundle_transcribes_as_it_does(
    head: str, decode: str, tones: Path, tmp_path: Path
) -> None:
    common = [*TINY, *SMALL, *tone_corpus(tones), "encoder.num_layers=4", f"head={head}", f"decode={decode}"]
    if not fits(small(resolved(*common))):
        pytest.skip("the decoder needs what the head has not")
    for name, steps in (("whole", [8]), ("parts", [3, 8])):
        for number in steps:
            until = [f"trainer.max_steps={number}", "resume.allow=[trainer.max_steps]"]
            train(small(resolved(*common, *until, f"run_dir={tmp_path / name}")))
    whole, parts = (load_file(tmp_path / name / "bundle" / "weights.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(weights, parts[name]) for name, weights in whole.items())
    recognizer = load_recognizer(tmp_path / "whole")
    assert recognizer.decode.description == load_recognizer(tmp_path / "parts").decode.description
    check_transcripts(recognizer)
