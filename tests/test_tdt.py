"""The token-and-duration transducer: its loss and its searches agree with enumerations and plain loops."""

import math
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.base.kernels.transducer_loss import transducer_loss
from asr.base.text.normalize import as_written
from asr.components.decode.transducer_beam import TransducerBeam
from asr.components.decode.transducer_greedy import TransducerGreedy
from asr.core.build import check_components, component
from asr.errors import InputError
from asr.interfaces import Encoded, Span
from tests.conftest import resolved
from tests.fusion import Pieces, search_settings
from tests.identity import decoded
from tests.refusals import refused
from tests.targets import targets_of
from tests.transducers import (
    DIM,
    FUSED,
    PIECES,
    PREDICTORS,
    SMALL,
    assert_finds,
    assert_junk_changes_no_hypothesis,
    assert_loss_and_gradient,
    logits_of,
    needs_kenlm,
    random_head,
    wide_searches,
)

DURATIONS = (0, 1, 3)

# The arcs of a path: frame, number of previous tokens, token or blank, index of the duration.
Arcs = list[tuple[int, int, int, int]]


def paths(num_frames: int, tokens: tuple[int, ...], durations: tuple[int, ...] = DURATIONS) -> Iterator[Arcs]:
    """Return all paths of the tokens; the last arc is a blank whose duration ends at the last frame."""

    def go(frame: int, written: int) -> Iterator[Arcs]:
        for number, duration in enumerate(durations):
            if duration > 0 and frame + duration == num_frames and written == len(tokens):
                yield [(frame, written, 0, number)]
            if duration > 0 and frame + duration < num_frames:
                for rest in go(frame + duration, written):
                    yield [(frame, written, 0, number), *rest]
            if written < len(tokens) and frame + duration < num_frames:
                for rest in go(frame + duration, written + 1):
                    yield [(frame, written, tokens[written], number), *rest]

    return go(0, 0) if num_frames else iter(())


def enumerated(
    logits: Tensor, tokens: tuple[int, ...], sigma: float = 0.0, durations: tuple[int, ...] = DURATIONS
) -> Tensor:
    """Return -log p(tokens), summed over all paths, from logits (T', U + 1, V + D)."""
    vocab_size = logits.shape[-1] - len(durations)
    of_tokens = logits[..., :vocab_size].log_softmax(dim=-1) - sigma
    of_durations = logits[..., vocab_size:].log_softmax(dim=-1)
    scores = [
        sum(
            of_tokens[frame, written, token] + of_durations[frame, written, number]
            for frame, written, token, number in path
        )
        for path in paths(len(logits), tokens, durations)
    ]
    return -torch.stack(scores).logsumexp(dim=0)  # type: ignore[arg-type]


CASES = [((1, 2), 4), ((2,), 5), ((), 2), ((3, 3, 1), 1), ((1, 1), 2), ((2, 1, 3), 4), ((), 1)]
VOCAB_SIZE = 4


@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_loss_and_gradient_equal_those_of_an_enumeration_of_all_paths(sigma: float) -> None:
    torch.manual_seed(1)
    assert_loss_and_gradient(
        lambda *batch: transducer_loss(*batch, DURATIONS, sigma),
        lambda logits, tokens: enumerated(logits, tokens, sigma),
        CASES,
        VOCAB_SIZE + len(DURATIONS),
    )


@pytest.mark.parametrize("durations", [(0, 1), (0, 1, 2, 3, 4), (0, 1, 8)])
def test_the_loss_equals_the_enumeration_for_any_durations(durations: tuple[int, ...]) -> None:
    for num_frames, tokens in ((4, (1, 2)), (6, (2,)), (1, (1, 1))):
        logits = torch.randn(1, num_frames, len(tokens) + 1, 3 + len(durations), dtype=torch.float64)
        lengths = torch.tensor([num_frames]), torch.tensor([len(tokens)])
        loss = transducer_loss(logits, torch.tensor([tokens]), *lengths, durations)
        torch.testing.assert_close(loss[0], enumerated(logits[0], tokens, durations=durations), rtol=0, atol=1e-12)


def test_the_gradient_equals_finite_differences() -> None:
    tokens, lengths, token_lengths = torch.tensor([[1, 2], [3, 0]]), torch.tensor([4, 3]), torch.tensor([2, 1])
    logits = torch.randn(2, 4, 3, VOCAB_SIZE + len(DURATIONS), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: transducer_loss(x, tokens, lengths, token_lengths, DURATIONS, 0.1), logits
    )


def test_the_loss_equals_that_of_the_transformers_package() -> None:
    witness = pytest.importorskip("transformers.loss.loss_tdt")
    logits = torch.randn(3, 40, 13, 9 + 5, requires_grad=True)
    tokens = torch.randint(1, 9, (3, 12))
    lengths, token_lengths, durations = torch.tensor([40, 23, 31]), torch.tensor([12, 0, 7]), [0, 1, 2, 3, 4]
    ours = transducer_loss(logits, tokens, lengths, token_lengths, durations, 0.02)
    theirs = witness.tdt_loss(
        *(logits[..., :9], logits[..., 9:], tokens, lengths, token_lengths, 0, durations, 0.02), reduction="none"
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)  # transformers sums in float32
    gradients = [torch.autograd.grad(loss.sum(), logits)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-4)


def test_long_utterances_have_finite_losses_and_gradients_in_each_precision() -> None:
    logits = 5 * torch.randn(1, 300, 61, 5 + 5)
    tokens, lengths = torch.randint(1, 5, (1, 60)), (torch.tensor([300]), torch.tensor([60]))
    exact = transducer_loss(logits.double(), tokens, *lengths, range(5))
    for dtype, rtol in ((torch.float32, 1e-6), (torch.bfloat16, 1e-2)):
        own = logits.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = transducer_loss(own, tokens, *lengths, range(5))
        assert loss.dtype == torch.float32
        torch.testing.assert_close(loss.double(), exact, rtol=rtol, atol=0)
        [gradient] = torch.autograd.grad(loss, own)
        assert gradient.dtype == dtype
        assert gradient.isfinite().all()
        assert gradient.any()


def test_an_utterance_without_frames_has_probability_0() -> None:
    tokens, lengths = torch.tensor([[1], [1], [0]]), torch.tensor([0, 2, 0])
    logits = torch.randn(3, 2, 2, 3 + 3, requires_grad=True)
    loss = transducer_loss(logits, tokens, lengths, torch.tensor([1, 1, 0]), DURATIONS)
    assert loss.isinf().tolist() == [True, False, True]
    [gradient] = torch.autograd.grad(loss[1], logits)
    assert gradient.isfinite().all()
    assert transducer_loss(torch.zeros(3, 0, 2, 6), tokens, 0 * lengths, lengths, DURATIONS).tolist() == [math.inf] * 3


@lru_cache
def config(predictor: str, *more: str) -> dict[str, Any]:
    overrides = [f"head/predictor={predictor}", *SMALL, "head.durations=[0,1,3]"]
    settings: dict[str, Any] = resolved("head=tdt", *overrides, *more)["head"]
    return settings


def head(predictor: str = "stateless", seed: int = 0, scale: float = 3.0, more: tuple[str, ...] = ()) -> Any:
    """Make a small head in float64 whose distributions are far from uniform."""
    return random_head(config(predictor, *more), len(PIECES), seed, scale)


def head_logits(made: Any, encoder_out: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Return logits (T', U + 1, V + D) of frames (T', D) and tokens, token by token."""
    return logits_of(made.predictor, made.joiner, encoder_out, tokens)


@pytest.mark.parametrize("more", [(), ("head.ctc_weight=0",), ("head.joint_activation=relu",)])
def test_the_loss_of_the_head_is_the_weighted_sum_of_the_tdt_loss_and_the_ctc_loss(more: tuple[str, ...]) -> None:
    made, encoder_out, tokens = head(more=more), torch.randn(1, 4, DIM, dtype=torch.float64), (2, 1)
    losses = made.losses(
        Encoded(encoder_out, torch.tensor([4]), {}),
        targets_of(torch.tensor([tokens]), torch.tensor([2])),
    )
    own = enumerated(head_logits(made, encoder_out[0], tokens), tokens)
    weight = made.ctc_weight
    expected = (1 - weight) * own + (weight * losses["ctc"][0] if weight else 0.0)
    torch.testing.assert_close(losses["loss"][0], expected, rtol=0, atol=1e-12)
    assert set(losses) == {"loss", *made.loss_names}
    assert (made.frame_head is None) == (weight == 0)
    assert made.min_frames([1, 1]) == (1 if weight == 0 else 3)


def test_omega_is_the_probability_of_a_loss_without_durations_and_the_draw_depends_on_the_seed() -> None:
    made = head(more=("head.omega=0.3", "head.ctc_weight=0", "head.sigma=0.05")).train()
    encoded = Encoded(torch.randn(2, 5, DIM, dtype=torch.float64), torch.tensor([5, 3]), {})
    tokens, lengths = torch.tensor([[2, 1], [3, 0]]), torch.tensor([2, 1])
    logits = torch.stack(
        [head_logits(made, out, tuple(row)) for out, row in zip(encoded.out, tokens.tolist(), strict=True)]
    )
    with_durations = transducer_loss(logits, tokens, encoded.lengths, lengths, DURATIONS, 0.05)
    without = transducer_loss(logits[..., : len(PIECES)], tokens, encoded.lengths, lengths)

    def drawn(seed: int) -> bool:
        torch.manual_seed(seed)
        loss = made.losses(encoded, targets_of(tokens, lengths))["loss"]
        is_without = torch.allclose(loss, without, rtol=0, atol=1e-10)
        assert is_without or torch.allclose(loss, with_durations, rtol=0, atol=1e-10)
        return is_without

    first = [drawn(seed) for seed in range(100)]
    assert 15 <= sum(first) <= 45
    assert [drawn(seed) for seed in range(100)] == first
    made.eval()
    assert not any(
        torch.allclose(made.losses(encoded, targets_of(tokens, lengths))["loss"], without) for _ in range(20)
    )


def test_cells_is_the_number_of_elements_of_the_largest_tensor() -> None:
    made, sizes = head(), []
    made.joiner.output.register_forward_hook(lambda module, inputs, out: sizes.extend([inputs[0].numel(), out.numel()]))
    encoded = Encoded(torch.randn(3, 9, DIM, dtype=torch.float64), torch.tensor([9, 2, 5]), {})
    made.losses(encoded, targets_of(torch.ones(3, 4, dtype=torch.int64), torch.tensor([1, 4, 2])))
    assert max(sizes) == 3 * made.cells(9, 4)


@pytest.mark.parametrize("durations", ["[1,2]", "[0,2]", "[0,1,1]", "[0,1,3,2]", "[0,1,1000]", "[0]", "[0,1.5]", "3"])
def test_invalid_durations_are_refused(durations: str) -> None:
    with refused(InputError, "head.durations ... ascending order"):
        component("head", resolved("head=tdt", f"head.durations={durations}")["head"])


def test_fast_emit_is_refused_with_durations() -> None:
    with refused(InputError, "head.fast_emit ... head.durations; got 0.01"):
        head(more=("head.fast_emit=0.01",))


@pytest.mark.parametrize("setting", ["sigma", "omega"])
def test_settings_of_the_loss_with_durations_are_refused_without_durations(setting: str) -> None:
    with refused(InputError, f"head.{setting} ... head.durations", got=0.1):
        check_components(resolved("head=transducer", f"head.{setting}=0.1"))


def greedy(made: Any, max_symbols: int = 10) -> TransducerGreedy:
    return TransducerGreedy(made, Pieces(PIECES), as_written, max_symbols=max_symbols)  # type: ignore[arg-type]


def plain_greedy(made: Any, encoder_out: Tensor, max_symbols: int) -> tuple[list[int], float, list[Span], list[float]]:
    """Decode one utterance, (T', D), arc by arc; return its tokens, score, frames and confidences."""
    tokens: list[int] = []
    spans, confidences, score, frame, number = [], [], 0.0, 0, 0
    while frame < len(encoder_out):
        row = head_logits(made, encoder_out[frame : frame + 1], tuple(tokens))[0, -1].detach()
        of_tokens, of_durations = row[: len(PIECES)].log_softmax(dim=0), row[len(PIECES) :].log_softmax(dim=0)
        token, kind = int(of_tokens.argmax()), int(of_durations.argmax())
        if number == max_symbols:
            token, kind = 0, 1
        if token == 0 and kind == 0:
            kind = 1
        score += float(of_tokens[token] + of_durations[kind])
        end = frame + DURATIONS[kind]
        if token:
            tokens.append(token)
            spans.append(Span(frame, min(max(end, frame + 1), len(encoder_out))))
            confidences.append(float(of_tokens[token].exp()))
        number = number + 1 if end == frame else 0
        frame = end
    return tokens, score, spans, confidences


@pytest.mark.parametrize("max_symbols", [1, 3])
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_greedy_decoding_of_a_batch_equals_a_plain_loop_over_each_utterance(predictor: str, max_symbols: int) -> None:
    num_tokens, kinds = 0, set()
    for seed in range(5):
        made, lengths = head(predictor, seed=seed), torch.tensor([9, 0, 4, 1, 12])
        encoder_out = torch.randn(len(lengths), 14, DIM, dtype=torch.float64)
        hypotheses = decoded(greedy(made, max_symbols), encoder_out, lengths)
        for [hypothesis], row, length in zip(hypotheses, encoder_out, lengths.tolist(), strict=True):
            tokens, score, frames, confidences = plain_greedy(made, row[:length], max_symbols)
            assert (hypothesis.tokens, hypothesis.frames) == (tokens, frames)
            assert hypothesis.score == pytest.approx(score, abs=1e-9)
            assert hypothesis.confidences == pytest.approx(confidences, abs=1e-9)
            num_tokens += len(tokens)
            kinds |= {span.end - span.start for span in frames}
    assert num_tokens > 30, "some hypotheses must have tokens"
    assert kinds >= {1, 3}


def test_a_stream_in_chunks_of_any_length_gives_the_hypothesis_of_one_pass() -> None:
    for seed in range(5):
        made = head("lstm", seed=seed)
        encoder_out, search = torch.randn(1, 40, DIM, dtype=torch.float64), greedy(made, 3)
        [[whole]] = decoded(search, encoder_out, torch.tensor([40]))
        for size in (1, 2, 7):
            state = search.initial_state()
            for chunk in encoder_out.split(size, dim=1):
                [[hypothesis]], [state] = search.step(Encoded(chunk, torch.tensor([chunk.shape[1]]), {}), [state])
            inside = [Span(start, min(end, 40)) for start, end in hypothesis.frames or []]
            assert (hypothesis.tokens, inside) == (whole.tokens, whole.frames)
            assert hypothesis.score == pytest.approx(whole.score)


def test_junk_after_an_utterance_changes_no_hypothesis() -> None:
    made = head()
    assert_junk_changes_no_hypothesis([greedy(made), beam(made)])


def beam(made: Any, **settings: Any) -> TransducerBeam:
    return TransducerBeam(made, Pieces(PIECES), as_written, **search_settings("transducer_beam", **settings))  # type: ignore[arg-type]


Best = tuple[float, list[Span], list[float]]  # score, frames and confidences of the most likely path


@lru_cache
def spelt(
    predictor: str, num_frames: int, max_symbols: int
) -> tuple[Any, Tensor, dict[tuple[int, ...], tuple[float, Best]]]:
    """Return a head, frames (T', D), and log p and the best path of each token sequence."""
    made, encoder_out = head(predictor), torch.randn(num_frames, DIM, dtype=torch.float64)
    ended: dict[tuple[int, ...], list[Best]] = {}

    def go(frame: int, number: int, tokens: tuple[int, ...], path: Best) -> None:
        if frame >= num_frames:
            ended.setdefault(tokens, []).append(path)
            return
        row = head_logits(made, encoder_out[frame : frame + 1], tokens)[0, -1]
        of_tokens, of_durations = row[: len(PIECES)].log_softmax(dim=0), row[len(PIECES) :].log_softmax(dim=0)
        score, spans, confidences = path
        for kind, duration in enumerate(DURATIONS):
            for token in range(len(PIECES)):
                arc = score + float(of_tokens[token] + of_durations[kind])
                if token == 0 and duration > 0:
                    go(frame + duration, 0, tokens, (arc, spans, confidences))
                elif token and number < max_symbols:
                    span = Span(frame, min(frame + max(duration, 1), num_frames))
                    sure = [*confidences, float(of_tokens[token].exp())]
                    after = number + 1 if duration == 0 else 0
                    go(frame + duration, after, (*tokens, token), (arc, [*spans, span], sure))

    with torch.no_grad():
        go(0, 0, (), (0.0, [], []))
    reference = {}
    for tokens, ways in ended.items():
        total = torch.tensor([score for score, *_ in ways], dtype=torch.float64).logsumexp(dim=0)
        reference[tokens] = float(total), max(ways, key=lambda path: path[0])
    return made, encoder_out, reference


@needs_kenlm
@pytest.mark.parametrize("fused", FUSED)
def test_a_wide_beam_finds_the_result_of_enumerating_all_paths(fused: str, tmp_path: Path) -> None:
    for fusion, acoustic, hypotheses in wide_searches(fused, spelt, beam, tmp_path):
        assert_finds(hypotheses, {tokens: score for tokens, (score, _) in acoustic.items()}, fusion)
        for hypothesis in hypotheses:
            _, (_, frames, confidences) = acoustic[tuple(hypothesis.tokens)]
            assert hypothesis.frames == frames
            assert hypothesis.confidences == pytest.approx(confidences)


def test_a_beam_returns_at_most_beam_size_hypotheses_and_a_wider_beam_finds_better_ones() -> None:
    best = []
    for size in (1, 4, 32):
        scores = []
        for seed in range(6):
            made, encoder_out = head("lstm", seed=seed), torch.randn(1, 30, DIM, dtype=torch.float64)
            [hypotheses] = decoded(beam(made, beam_size=size, tokens_per_frame=3), encoder_out, torch.tensor([30]))
            assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses) <= size
            assert all(span.start < span.end <= 30 for hypothesis in hypotheses for span in hypothesis.frames or [])
            scores.append(hypotheses[0].score)
        best.append(sum(scores))
    assert best[0] < best[1] < best[2]


@pytest.mark.parametrize("threshold", [0.0, 0.01, 2.0])
def test_a_beam_that_prunes_nearly_everything_terminates(threshold: float) -> None:
    for seed in range(8):
        made = head("gru", seed=seed)
        [hypotheses] = decoded(
            beam(made, beam_threshold=threshold), torch.randn(1, 25, DIM, dtype=torch.float64), torch.tensor([25])
        )
        assert hypotheses
