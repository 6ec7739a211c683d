"""Hotwords in a transducer's greedy search agree with a plain loop over each utterance."""

import random
from functools import lru_cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.base.text.normalize import as_written
from asr.components.decode.transducer_greedy import TransducerGreedy
from asr.interfaces import NO_BIASING, Biasing, Encoded, Hypothesis, Span
from tests.conftest import resolved
from tests.fusion import PHRASES, Fusion, Pieces
from tests.identity import decoded
from tests.transducers import DIM, PIECES, PREDICTORS, SMALL, logits_of, random_head

HEADS = ("transducer", "tdt")
EACH_HEAD = pytest.mark.parametrize("kind", HEADS)
EACH_PREDICTOR = pytest.mark.parametrize(("kind", "predictor"), [*product(HEADS, PREDICTORS)])
LENGTHS = torch.tensor([9, 0, 4, 1, 14])


@lru_cache
def config(kind: str, predictor: str) -> dict[str, Any]:
    settings: dict[str, Any] = resolved(f"head={kind}", f"head/predictor={predictor}", *SMALL)["head"]
    return settings


def search_of(kind: str, predictor: str = "stateless", seed: int = 0, max_symbols: int = 3) -> TransducerGreedy:
    """Make the search of a head in float64 that often emits tokens, and is seldom sure of them."""
    made = random_head(config(kind, predictor), len(PIECES), seed, scale=1.0)
    return TransducerGreedy(made, Pieces(PIECES), as_written, max_symbols=max_symbols)  # type: ignore[arg-type]


def draw_frames() -> Tensor:
    return torch.randn(len(LENGTHS), int(LENGTHS.max()), DIM, dtype=torch.float64)


def draw_lists(number: int, seed: int = 0) -> list[list[str]]:
    draw = random.Random(seed)
    return [draw.sample(PHRASES[:-1], draw.randrange(4)) for _ in range(number)]


def found(search: TransducerGreedy, frames: Tensor, biasings: list[Biasing]) -> list[Hypothesis]:
    lengths = LENGTHS if frames.shape[0] == len(LENGTHS) else torch.full((len(frames),), frames.shape[1])
    return [best for [best] in search.search(search.evidence(Encoded(frames, lengths, {})), biasings)]


def plain_search(search: TransducerGreedy, biasing: Biasing, frames: Tensor) -> tuple[list[int], float]:
    """Search one utterance, (T', D), arc by arc, over all tokens; return its tokens and the path's log-probability.

    Each token is compared by its log-probability and its bonus; a token that leaves a phrase has no bonus, and the
    blank is compared without the bonus of the unfinished phrase.
    """
    made: Any = search.head
    fusion = search._fusion.biased(biasing)
    context, durations = fusion.start(), list(made.durations)
    tokens: list[int] = []
    score, frame, number = 0.0, 0, 0
    while frame < len(frames):
        row = logits_of(made.predictor, made.joiner, frames[frame : frame + 1], tokens)[0, -1].detach()
        of_tokens = row[: len(PIECES)].log_softmax(dim=0).tolist()
        extended = {token: fusion.extend(context, token) for token in range(1, len(PIECES))}
        gains = {0: -context[3].bonus} | {token: each[1] for token, each in extended.items() if each is not None}
        token = max(gains, key=lambda each: of_tokens[each] + gains[each]) if number < search.max_symbols else 0
        score, duration = score + of_tokens[token], int(token == 0)
        if durations:
            of_durations = row[len(PIECES) :].log_softmax(dim=0)
            kind = int(of_durations.argmax()) if number < search.max_symbols else durations.index(1)
            kind = durations.index(1) if token == 0 and durations[kind] == 0 else kind
            score, duration = score + float(of_durations[kind]), durations[kind]
        if each := extended.get(token):
            context = each[0]
            tokens.append(token)
        number = number + 1 if duration == 0 else 0
        frame += duration
    return tokens, score


@EACH_PREDICTOR
def test_a_batch_equals_a_plain_loop_over_each_utterance(kind: str, predictor: str) -> None:
    """Completed phrases have their bonus in the score; phrases that the path leaves have none."""
    changed = 0
    for seed in range(4):
        search, frames, lists = search_of(kind, predictor, seed), draw_frames(), draw_lists(len(LENGTHS), seed)
        biasings = [search.compile_hotwords(phrases, 2.0) for phrases in lists]
        rows = zip(found(search, frames, biasings), decoded(search, frames, LENGTHS), strict=True)
        for number, (hypothesis, [unbiased]) in enumerate(rows):
            tokens, score = plain_search(search, biasings[number], frames[number, : LENGTHS[number]])
            assert hypothesis.tokens == tokens
            words = "".join(PIECES[token] for token in tokens).split()
            bonus = 2.0 * Fusion(PIECES, hotwords=lists[number]).covered(words)
            assert hypothesis.score == pytest.approx(score + bonus, abs=1e-5)
            changed += tokens != unbiased.tokens
    assert changed > 3, "hotwords change tokens"


@EACH_PREDICTOR
def test_without_a_bonus_every_bit_is_that_of_the_most_likely_tokens(kind: str, predictor: str) -> None:
    search, frames = search_of(kind, predictor, seed=17), draw_frames().float()
    search.head.float()  # type: ignore[attr-defined]
    plain = [best for [best] in decoded(search, frames, LENGTHS)]
    assert sum(len(hypothesis.tokens) for hypothesis in plain) > 5
    for biasing in (NO_BIASING, search.compile_hotwords([]), search.compile_hotwords(PHRASES[:-1], 0.0)):
        assert found(search, frames, [biasing] * len(LENGTHS)) == plain
    one = [search.compile_hotwords(["a"], 9.0), *[NO_BIASING] * (len(LENGTHS) - 1)]
    assert found(search, frames, one)[1:] == plain[1:]


def test_no_bonus_is_lost_where_another_list_of_the_utterance_has_the_word() -> None:
    search, frames = search_of("tdt"), draw_frames()
    both, first, second = (search.compile_hotwords(phrases, 2.0) for phrases in (["a b", "ba"], ["a b"], ["ba"]))
    together = Biasing([], {}, (*first.lists, *second.lists))
    assert found(search, frames, [together] * len(LENGTHS)) == found(search, frames, [both] * len(LENGTHS))


@EACH_HEAD
def test_streams_together_with_lists_of_their_own_give_the_hypotheses_of_one_pass(kind: str) -> None:
    search, frames = search_of(kind, "lstm"), torch.randn(8, 40, DIM, dtype=torch.float64)
    biasings = [search.compile_hotwords(phrases, 2.0) for phrases in draw_lists(8)]
    whole = found(search, frames, biasings)
    assert whole != found(search, frames, [NO_BIASING] * 8)
    for size in (1, 7):
        states = [search.initial_state(biasing) for biasing in biasings]
        for chunk in frames.split(size, dim=1):
            hypotheses, states = search.step(Encoded(chunk, torch.full((8,), chunk.shape[1]), {}), states)
        for [streamed], expected in zip(hypotheses, whole, strict=True):
            assert streamed.tokens == expected.tokens
            if kind == "tdt":  # else a CTC head computes the times
                assert [Span(start, min(end, 40)) for start, end in streamed.frames or []] == expected.frames
            assert streamed.score == pytest.approx(expected.score)
            assert streamed.num_final == len(streamed.tokens)


@EACH_HEAD
@pytest.mark.parametrize("first", [[], ["a"]])
def test_a_new_list_of_a_stream_applies_from_the_next_word_on(kind: str, first: list[str]) -> None:
    changed = 0
    for seed in range(6):
        search, frames = search_of(kind, seed=seed), torch.randn(1, 40, DIM, dtype=torch.float64)
        lists = [search.compile_hotwords(phrases, 9.0) for phrases in (first, ["b"])]

        def texts(second: Biasing | None, search: TransducerGreedy, frames: Tensor, own: Biasing) -> tuple[str, str]:
            state, lengths = search.initial_state(own), torch.tensor([20])
            [[before]], [state] = search.step(Encoded(frames[:, :20], lengths, {}), [state])
            final, state = search.settle(state if second is None else search.replace_hotwords(state, second))
            assert final.tokens == before.tokens
            [[after]], _ = search.step(Encoded(frames[:, 20:], lengths, {}), [state])
            early, late = ("".join(PIECES[token] for token in each.tokens) for each in (before, after))
            return early, late

        kept, replaced = texts(None, search, frames, lists[0]), texts(lists[1], search, frames, lists[0])
        assert replaced[0] == kept[0]
        (same, _, later), (expected, _, others) = replaced[1].partition(" "), kept[1].partition(" ")
        changed += later.split().count("b") - others.split().count("b")
        if not first and kept[0] and not kept[0].endswith(" "):
            assert same == expected, "the rest of the word"
    assert changed > 3
