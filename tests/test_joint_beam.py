"""Joint beam search and rescoring: prefix scores and hypotheses equal those found by trying all paths and strings."""

import math
import random
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.base.text.normalize import as_written
from asr.components.decode.attention_rescoring import AttentionRescoring
from asr.components.decode.joint_beam import JointBeam, PrefixScores
from asr.components.head.ctc_attention import CTCAttention
from asr.core.build import check_needs, component
from asr.errors import InputError
from asr.interfaces import BOUNDARY_ID, Encoded, Hypothesis
from tests.conftest import block_dims, resolved
from tests.fusion import (
    WIDE,
    Pieces,
    drawn_fusion,
    search_settings,
)
from tests.refusals import refused
from tests.test_beam import LETTERS, SUBWORDS, needs_kenlm
from tests.test_ctc import collapse
from tests.test_ctc_attention import DIM, VOCAB_SIZE, joint_head

# The beam is so wide that it drops no hypothesis.
ALL = {"beam_size": 10_000, "beam_threshold": 1_000.0, "tokens_per_step": 10_000}


def total(log_probs: Iterable[float]) -> float:
    """Return the logarithm of the sum of probabilities, given their logarithms."""
    return math.log(math.fsum(map(math.exp, log_probs))) if (log_probs := list(log_probs)) else -math.inf


def strings(log_probs: Tensor) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every string that the log_probs (T', V) of CTC can spell, summed over its paths."""
    paths: dict[tuple[int, ...], list[float]] = {}
    for path in product(range(log_probs.shape[1]), repeat=len(log_probs)):
        log_prob = sum(frame[token] for frame, token in zip(log_probs.tolist(), path, strict=True))
        paths.setdefault(tuple(collapse(path)), []).append(log_prob)
    return {tokens: total(log_probs_of_paths) for tokens, log_probs_of_paths in paths.items()}


def test_the_score_of_a_prefix_is_the_total_of_all_strings_that_start_with_it() -> None:
    log_probs = (2 * torch.randn(5, 3, dtype=torch.float64)).log_softmax(dim=-1)
    ctc, expected = PrefixScores(log_probs), strings(log_probs)
    prefixes, paths, last = [()], ctc.start(), torch.tensor([0])
    for length in range(1, 6):
        grown = [(*prefix, token) for prefix in prefixes for token in (1, 2)]
        begun = [total(score for text, score in expected.items() if text[:length] == prefix) for prefix in grown]
        scores = ctc.extended(paths, last, torch.tensor([[1, 2]] * len(prefixes)))
        assert scores.flatten().tolist() == pytest.approx(begun, abs=1e-10)
        paths = ctc.grow(paths.repeat_interleave(2, 0), last.repeat_interleave(2), torch.tensor([1, 2] * len(prefixes)))
        last, prefixes = torch.tensor([prefix[-1] for prefix in grown]), grown  # type: ignore[assignment]
        whole = [expected.get(prefix, -math.inf) for prefix in grown]
        assert ctc.whole(paths).tolist() == pytest.approx(whole, abs=1e-10)


def test_prefixes_of_a_long_utterance_are_not_affected_by_rounding() -> None:
    log_probs = (8 * torch.randn(700, 4, dtype=torch.float64)).log_softmax(dim=-1)
    tokens, ctc = [1, 1, 2, 3, 3, 3, 2] * 12, PrefixScores(log_probs)
    paths, last = ctc.start(), torch.tensor([0])
    for token in tokens:
        paths, last = ctc.grow(paths, last, torch.tensor([token])), torch.tensor([token])
    lengths = torch.tensor([700]), torch.tensor([len(tokens)])
    loss = torch.nn.functional.ctc_loss(log_probs[:, None], torch.tensor([tokens]), *lengths, reduction="sum")
    assert float(ctc.whole(paths)) == pytest.approx(-float(loss), abs=1e-8)


def joint_beam(head: CTCAttention, pieces: Sequence[str], **settings: Any) -> JointBeam:
    made = search_settings("joint_beam", **settings)
    return JointBeam(head, Pieces(pieces), as_written, **made)  # type: ignore[arg-type]


def decode_one(decoder: JointBeam | AttentionRescoring, frames: Tensor, **values: float) -> list[Hypothesis]:
    with torch.inference_mode():
        [hypotheses] = decoder.search(
            decoder.evidence(Encoded(frames[None], torch.tensor([len(frames)]), {})), **values
        )  # type: ignore[arg-type]
    return hypotheses


class Attention:
    """The log-probabilities that a decoder gives to strings; it predicts each token from all previous tokens."""

    def __init__(self, head: CTCAttention, frames: Tensor) -> None:
        self.decoder = head.token_decoder
        self.memory = self.decoder.remember(frames[None], torch.tensor([len(frames)]))
        self.asked: dict[tuple[int, ...], list[float]] = {}

    @torch.inference_mode()
    def next(self, before: tuple[int, ...]) -> list[float]:
        if before not in self.asked:
            tokens = torch.tensor([[BOUNDARY_ID, *before]])
            self.asked[before] = self.decoder(tokens, self.memory, self.decoder.start(1))[0][0, -1].tolist()
        return self.asked[before]

    def score(self, tokens: Sequence[int]) -> float:
        return sum(self.next(tuple(tokens[:number]))[token] for number, token in enumerate([*tokens, BOUNDARY_ID]))


@needs_kenlm
@pytest.mark.parametrize(("lexicon", "hotwords"), [(False, False), (False, True), (True, False)])
@pytest.mark.parametrize(
    ("pieces", "lm_unit"), [(LETTERS, None), (LETTERS, "word"), (SUBWORDS, "token"), (LETTERS, "spelled")]
)
def test_a_wide_search_finds_the_same_result_as_enumerating_all_strings(
    tmp_path: Path, pieces: list[str], lm_unit: str | None, lexicon: bool, hotwords: bool
) -> None:
    pieces = pieces + ["c"] * (VOCAB_SIZE - len(pieces))
    draw = random.Random(f"{pieces} {lm_unit} {lexicon} {hotwords}")
    plain = drawn_fusion(draw, pieces, lm_unit, lexicon, hotwords)
    head = joint_head("pre_norm")
    ctc_weight = draw.choice([0.0, 0.3, 1.0])
    search = joint_beam(
        head,
        pieces,
        **ALL | plain.settings(tmp_path),
    )
    frames = torch.randn(3, DIM, dtype=torch.float64)
    expected, attention = {}, Attention(head, frames)
    for tokens, log_prob in strings(head.ctc.log_probs(frames).detach()).items():
        fused = plain.score(tokens)
        if fused is not None:
            expected[tokens] = ctc_weight * log_prob + (1 - ctc_weight) * attention.score(tokens) + fused
    hypotheses = decode_one(search, frames, ctc_weight=ctc_weight)
    scores = {tuple(hypothesis.tokens): hypothesis.score for hypothesis in hypotheses}
    assert scores == pytest.approx(expected, abs=1e-4)  # KenLM computes in float32
    assert [hypothesis.score for hypothesis in hypotheses] == sorted(
        (hypothesis.score for hypothesis in hypotheses), reverse=True
    )


def test_the_search_ends_early_when_no_hypothesis_can_improve_and_finds_the_same_result() -> None:
    head = joint_head("post_norm")
    with torch.no_grad():
        head.token_decoder.linear.bias[BOUNDARY_ID] += 4.0  # so that most sequences are short
    frames = torch.randn(12, DIM, dtype=torch.float64)
    calls, best = [], []
    for threshold in (1_000.0, 5.0):
        search = joint_beam(head, [*LETTERS, "d"], beam_size=12, beam_threshold=threshold)
        steps = head.token_decoder.register_forward_hook(lambda *_: calls.append(threshold))  # noqa: B023
        best.append(decode_one(search, frames)[0])
        steps.remove()
    assert best[0] == best[1]
    assert calls.count(1_000.0) == 12 + 1  # once per frame, and once for the end of the sequence
    assert calls.count(5.0) < 8


def test_an_utterance_has_the_same_hypotheses_alone_and_in_any_batch() -> None:
    head = joint_head("pre_norm")
    lengths = torch.tensor([7, 4, 0])
    frames = torch.randn(3, 7, DIM, dtype=torch.float64)
    frames[1, 4:], frames[2] = math.nan, math.inf
    rescoring = rescorer(head)
    for decoder in (joint_beam(head, [*LETTERS, "d"]), rescoring):
        with torch.inference_mode():
            together = decoder.search(decoder.evidence(Encoded(frames, lengths, {})))  # type: ignore[arg-type]
        assert [hypothesis.tokens for hypothesis in together[2]] == [[]]
        for row, hypotheses in enumerate(together):
            alone = decode_one(decoder, frames[row, : lengths[row]])
            assert [hypothesis.tokens for hypothesis in hypotheses] == [hypothesis.tokens for hypothesis in alone]
            assert [hypothesis.score for hypothesis in hypotheses] == pytest.approx(
                [hypothesis.score for hypothesis in alone], abs=1e-10
            )


def rescorer(head: CTCAttention, **settings: Any) -> AttentionRescoring:
    made = search_settings("attention_rescoring", **settings)
    return AttentionRescoring(head, Pieces([*LETTERS, "d"]), as_written, **made)  # type: ignore[arg-type]


def test_rescoring_adds_the_log_probability_of_the_decoder_to_the_score_of_the_first_pass() -> None:
    head = joint_head("pre_norm")
    frames = torch.randn(5, DIM, dtype=torch.float64)
    search = rescorer(head, beam_size=50, beam_threshold=WIDE["beam_threshold"], token_threshold=-1_000.0)
    first = decode_one(search, frames, attention_weight=0.0)
    rescored = decode_one(search, frames, attention_weight=1.5)
    assert len(rescored) == len(first) == 50
    attention = Attention(head, frames)
    expected = {
        tuple(hypothesis.tokens): hypothesis.score + 1.5 * attention.score(hypothesis.tokens) for hypothesis in first
    }
    assert {tuple(hypothesis.tokens): hypothesis.score for hypothesis in rescored} == pytest.approx(expected, abs=1e-9)
    assert [hypothesis.score for hypothesis in rescored] == sorted(
        (hypothesis.score for hypothesis in rescored), reverse=True
    )
    assert [hypothesis.tokens for hypothesis in rescored] != [hypothesis.tokens for hypothesis in first]


@pytest.mark.parametrize("decode", ["joint_beam", "attention_rescoring"])
def test_a_head_without_a_token_decoder_is_refused_in_one_line(decode: str) -> None:
    config = resolved("head=ctc", f"decode={decode}")
    must = f"decode={decode} ... token_decoder"
    with refused(InputError, must):
        check_needs(
            component("decode", config["decode"]), component("head", config["head"])(8, block_dims(8), 4), config
        )
