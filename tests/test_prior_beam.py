"""Beam search on posteriors divided by label priors, and how a bundle receives the priors."""

import json
import math
import random
import shutil
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.checkpoint.load import load_recognizer, with_label_priors
from asr.data.manifest import Utterance
from asr.decode.prior_beam import PriorBeam
from asr.errors import InputError
from asr.evaluation.label_priors import label_log_priors
from asr.evaluation.tuning import EncodedUtterance
from asr.recognition.long_form import Segment
from asr.text.normalize import as_written
from asr.transcribe import main as transcribe
from asr.tune import main as tune
from tests.fusion import WIDE, Pieces, beam, drawn_fusion, search_settings
from tests.identity import IDENTITY, decoded

needs_kenlm = pytest.mark.skipif(find_spec("flashlight") is None, reason="flashlight-text is not installed")

PIECES = ["", " ", "a", "b", "c"]
PRIORS = [math.log(p) for p in (0.6, 0.1, 0.2, 0.07, 0.03)]


def prior_beam(**settings: Any) -> PriorBeam:
    made = search_settings("prior_beam", **settings)
    return PriorBeam(IDENTITY, Pieces(PIECES), as_written, **made)  # type: ignore[arg-type]


def random_log_probs(*shape: int) -> Tensor:
    return (2.0 * torch.randn(*shape)).log_softmax(dim=-1)


@needs_kenlm
@pytest.mark.parametrize("lm_unit", [None, "word", "spelled"])
def test_with_priors_a_wide_beam_gives_the_result_of_enumerating_all_paths(tmp_path: Path, lm_unit: str | None) -> None:
    for seed in range(4):
        plain = drawn_fusion(random.Random(f"{lm_unit} {seed}"), PIECES, lm_unit, lexicon=False, hotwords=True)
        search = prior_beam(**WIDE | plain.settings(tmp_path), label_priors=PRIORS, prior_weight=0.3)
        torch.manual_seed(seed)
        log_probs = random_log_probs(5, len(PIECES))
        evidence = search.evidence(log_probs[None], torch.tensor([5]))
        for weight, [hypotheses] in ((0.3, search.search(evidence)), (0.8, search.search(evidence, prior_weight=0.8))):
            frames = [
                [value - weight * prior for value, prior in zip(row, PRIORS, strict=True)] for row in log_probs.tolist()
            ]
            expected = plain.rank(torch.tensor(frames))
            assert {tuple(hypothesis.tokens): hypothesis.score for hypothesis in hypotheses} == pytest.approx(
                expected, abs=1e-4
            )
            assert hypotheses[0].tokens == list(next(iter(expected)))


@pytest.mark.parametrize("settings", [{"label_priors": None, "prior_weight": 0.5}, {"label_priors": PRIORS}])
def test_without_priors_or_weight_the_result_equals_beam_search(settings: dict[str, Any]) -> None:
    log_probs, lengths = random_log_probs(3, 20, len(PIECES)), torch.tensor([20, 7, 0])
    search = prior_beam(**settings)
    assert decoded(search, log_probs, lengths) == decoded(beam(PIECES), log_probs, lengths)
    assert search.tunable.keys() == ({"prior_weight"} if settings["label_priors"] else set())


def test_searching_chunk_by_chunk_equals_searching_the_whole_utterance() -> None:
    search = prior_beam(label_priors=PRIORS, prior_weight=0.5)
    log_probs = random_log_probs(30, len(PIECES))
    states = [search.initial_state()]
    for chunk in log_probs.split(7):
        [hypotheses], states = search.step(chunk[None], torch.tensor([len(chunk)]), states)
    [whole] = decoded(search, log_probs[None], torch.tensor([30]))
    assert [(hypothesis.tokens, hypothesis.score) for hypothesis in hypotheses] == [
        (hypothesis.tokens, hypothesis.score) for hypothesis in whole
    ]
    assert whole[0].tokens != decoded(beam(PIECES), log_probs[None], torch.tensor([30]))[0][0].tokens


def test_priors_are_the_mean_posterior_of_all_frames_and_of_an_added_uniform_frame() -> None:
    torch.manual_seed(0)
    parts = [random_log_probs(length, 5) for length in (4, 1, 9)]
    recognizer: Any = SimpleNamespace(
        log_probs=lambda encoder_out: encoder_out, model=SimpleNamespace(tokenizer=Pieces(PIECES))
    )
    utterances = [Utterance("a", 1.0, "", "a"), Utterance("b", 1.0, "", "b")]
    segments = [[Segment(0.0, parts[0]), Segment(1.0, parts[1])], [Segment(0.0, parts[2])]]
    recordings = [EncodedUtterance(*pair) for pair in zip(utterances, segments, strict=True)]
    expected = [0.2] * 5
    for part in parts:
        for row in part.double().tolist():
            expected = [sum(pair) for pair in zip(expected, map(math.exp, row), strict=True)]
    log_priors = label_log_priors(recognizer, recordings)
    assert log_priors == pytest.approx([math.log(value / 15) for value in expected], abs=1e-6)
    assert sum(map(math.exp, log_priors)) == pytest.approx(1, abs=1e-6)
    with pytest.raises(InputError, match=r"--label-priors must name recordings with audio that can be read; got none"):
        label_log_priors(recognizer, [])


def test_tuning_estimates_priors_without_transcripts_and_stores_them_in_the_bundle(
    fluent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(fluent / "run" / "bundle", tmp_path / "bundle"))
    dev, untranscribed = fluent / "valid.jsonl", tmp_path / "untranscribed.jsonl"
    lines = [json.loads(line) for line in dev.read_text().splitlines()]
    files = [str((fluent / line["audio_filepath"]).resolve()) for line in lines]
    pairs = zip(files, lines, strict=True)
    rows = [{"audio_filepath": file, "duration": line["duration"], "text": ""} for file, line in pairs]
    untranscribed.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [str(bundle), str(dev), "--label-priors", str(untranscribed), "--attach", "always", "--beam", "4"]
    assert tune(options) == 0
    output = capsys.readouterr().out
    assert f"label priors: from {len(rows)} recordings; blank " in output
    assert "prior weight  0.50: WER" in output
    decode = json.loads((bundle / "config.json").read_text())["decode"]
    assert (decode["name"], decode["beam_size"]) == ("prior_beam", 4)
    recognizer = load_recognizer(bundle)
    assert len(decode["label_priors"]) == recognizer.model.tokenizer.vocab_size
    assert sum(map(math.exp, decode["label_priors"])) == pytest.approx(1, abs=1e-6)
    assert decode["prior_weight"] == recognizer.decode.tunable["prior_weight"].value
    assert transcribe([str(bundle), str(dev)]) == 0
    assert tune([str(bundle), str(dev), "--attach", "always"]) == 0
    again = json.loads((bundle / "config.json").read_text())["decode"]
    assert again["label_priors"] == decode["label_priors"], "a later tuning keeps the priors"


def test_priors_are_passed_to_the_first_pass_of_rescoring() -> None:
    given = {"language_model": "lm", "rescoring_weight": 0.2, "fusion": {"lm": "words.arpa"}}
    settings = with_label_priors(given, PRIORS, {"name": "greedy"})
    first = {"name": "prior_beam", "label_priors": PRIORS, "prior_weight": 0.0}
    assert settings == {**given, "first": first}
    assert with_label_priors({}, PRIORS, {"name": "lm_rescoring", "first": {}}) == {"first": first}
    assert with_label_priors({"name": "beam"}, PRIORS, {"name": "greedy"}) == first


def test_the_wrong_number_of_priors_and_priors_for_another_decoder_are_refused() -> None:
    must = (
        r"^the number of decode\.label_priors must be the number of tokens, 5 \(asr\.tune --label-priors .*\); got 4\."
    )
    with pytest.raises(InputError, match=must):
        prior_beam(label_priors=PRIORS[:4])
    with pytest.raises(InputError, match=r"--label-priors needs beam search; got --decode joint_beam"):
        with_label_priors({"name": "joint_beam"}, PRIORS, {"name": "greedy"})
