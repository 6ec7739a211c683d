"""The beam search with at most one token per frame agrees with an enumeration of paths and with a plain loop."""

import math
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.base.text.normalize import as_written
from asr.components.decode.monotonic_beam import MonotonicBeam
from asr.core.build import check_components
from asr.errors import InputError
from tests.conftest import resolved
from tests.fusion import Pieces, search_settings
from tests.identity import decoded
from tests.refusals import refused
from tests.transducers import (
    DIM,
    FUSED,
    PIECES,
    SMALL,
    assert_junk_changes_no_hypothesis,
    logits_of,
    needs_kenlm,
    random_fusion,
    random_head,
)

NUM_FRAMES = 4


def head(predictor: str = "stateless_conv", seed: int = 0) -> Any:
    """Make a small transducer in float64 whose distributions are far from uniform."""
    config = resolved("head=transducer", "head.ctc_weight=0", f"head/predictor={predictor}", *SMALL)["head"]
    return random_head(config, len(PIECES), seed, scale=3.0)


def beam(made: Any, **settings: Any) -> MonotonicBeam:
    return MonotonicBeam(made, Pieces(PIECES), as_written, **search_settings("monotonic_beam", **settings))  # type: ignore[arg-type]


def row_of(made: Any, frame: Tensor, tokens: tuple[int, ...]) -> list[float]:
    """Return log_probs (V,) of a frame (D,) after tokens."""
    log_probs: list[float] = logits_of(made.predictor, made.joiner, frame[None], tokens)[0, -1].log_softmax(0).tolist()
    return log_probs


@lru_cache
def enumerated(seed: int) -> tuple[Any, Tensor, dict[tuple[int, ...], float]]:
    """Return a head, frames (T', D), and the score of each token sequence, from all sequences of outputs of frames."""
    made, encoder_out = head(seed=seed), torch.randn(NUM_FRAMES, DIM, dtype=torch.float64)
    scores: dict[tuple[int, ...], float] = {}
    for outputs in product(range(len(PIECES)), repeat=NUM_FRAMES):
        tokens: tuple[int, ...] = ()
        path = 0.0
        for frame, output in zip(encoder_out, outputs, strict=True):
            path += row_of(made, frame, tokens)[output]
            tokens += (output,) if output else ()
        scores[tokens] = math.log(math.exp(scores.get(tokens, -math.inf)) + math.exp(path))
    return made, encoder_out, scores


@needs_kenlm
@pytest.mark.parametrize("fused", FUSED)
@torch.no_grad()
def test_a_wide_beam_finds_the_result_of_enumerating_all_paths(fused: str, tmp_path: Path) -> None:
    for seed in range(2):
        made, encoder_out, scores = enumerated(seed)
        fusion = random_fusion(fused, seed)
        search = beam(made, beam_size=10_000, tokens_per_frame=100, **fusion.settings(tmp_path))
        [hypotheses] = decoded(search, encoder_out[None], torch.tensor([NUM_FRAMES]))
        gains = {tokens: fusion.score(tokens) for tokens in scores}
        expected = {tokens: scores[tokens] + gain for tokens, gain in gains.items() if gain is not None}
        actual = {tuple(hypothesis.tokens): hypothesis.score for hypothesis in hypotheses}
        assert actual == pytest.approx(expected, abs=1e-4)  # the language model's figures are float32
        ranked = [hypothesis.score / (len(hypothesis.tokens) + 2) for hypothesis in hypotheses]
        assert ranked == sorted(ranked, reverse=True)


def plain_beam(made: Any, encoder_out: Tensor, beam_size: int) -> dict[tuple[int, ...], float]:
    """Search frames (T', D): the `beam_size` best pairs of a prefix and an output remain, and equal prefixes merge."""
    beams = {(): 0.0}
    for frame in encoder_out:
        pairs = []
        for tokens, score in beams.items():
            for output, log_prob in enumerate(row_of(made, frame, tokens)):
                pairs.append((score + log_prob, (*tokens, output) if output else tokens))
        beams = {}
        for score, tokens in sorted(pairs, reverse=True)[:beam_size]:
            beams[tokens] = math.log(math.exp(beams.get(tokens, -math.inf)) + math.exp(score))
    return beams


@pytest.mark.parametrize("predictor", ["stateless_conv", "lstm"])
@torch.no_grad()
def test_a_narrow_beam_equals_a_plain_loop_over_pairs_of_prefixes_and_outputs(predictor: str) -> None:
    best, differs = set(), 0
    for seed in range(12):
        made, encoder_out = head(predictor, seed), torch.randn(15, DIM, dtype=torch.float64)
        expected = plain_beam(made, encoder_out, 4)
        [hypotheses] = decoded(beam(made), encoder_out[None], torch.tensor([15]))
        actual = {tuple(hypothesis.tokens): hypothesis.score for hypothesis in hypotheses}
        assert actual == pytest.approx(expected, abs=1e-9)
        first = max(expected, key=lambda tokens: expected[tokens] / (len(tokens) + 2))
        assert tuple(hypotheses[0].tokens) == first
        best.add(first)
        differs += first != max(expected, key=lambda tokens: expected[tokens])
        assert all(0 <= span.start < span.end == span.start + 1 for span in hypotheses[0].frames)
    assert len(best) > 5
    assert differs, "the ranking by the score per token must matter"


@torch.no_grad()
def test_junk_after_an_utterance_changes_no_hypothesis() -> None:
    assert_junk_changes_no_hypothesis([beam(head())])


def test_a_head_that_predicts_durations_is_refused() -> None:
    with refused(InputError, "decode=monotonic_beam ... frame_joiner ... head=transducer"):
        check_components(resolved("head=tdt", "decode=monotonic_beam"))
