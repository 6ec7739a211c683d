"""The transducer: its loss, prediction networks and searches agree with enumerations and plain loops."""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.base.kernels.transducer_loss import transducer_loss
from asr.base.text.normalize import as_written
from asr.components.decode.fusion.shallow_fusion import ShallowFusion
from asr.components.decode.transducer_beam import TransducerBeam
from asr.components.decode.transducer_greedy import TransducerGreedy
from asr.core.build import check_components
from asr.errors import InputError
from asr.interfaces import Encoded
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
    batch_of,
    logits_of,
    needs_kenlm,
    random_fusion,
    random_head,
    wide_searches,
)


@lru_cache
def config(predictor: str, *more: str) -> dict[str, Any]:
    overrides = [f"head/predictor={predictor}", *SMALL, *more]
    settings: dict[str, Any] = resolved("head=transducer", *overrides)["head"]
    return settings


def head(
    predictor: str = "stateless", *more: str, vocab_size: int = len(PIECES), scale: float = 3.0, seed: int = 0
) -> Any:
    """Make a small transducer in float64 whose distributions are far from uniform."""
    return random_head(config(predictor, *more), vocab_size, seed, scale)


def log_probs(made: Any, encoder_out: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Return log_probs (T', U + 1, V) of frames (T', D) and tokens, token by token."""
    return logits_of(made.predictor, made.joiner, encoder_out, tokens).log_softmax(dim=-1)


def alignments(num_frames: int, num_tokens: int, most: int) -> Iterator[tuple[int, ...]]:
    """List all alignments: the number of tokens emitted in each frame, at most `most` per frame."""
    counts = product(range(min(most, num_tokens) + 1), repeat=num_frames)
    return (each for each in counts if sum(each) == num_tokens)


def enumerated(log_probs: Tensor, tokens: tuple[int, ...], most: int = 99) -> Tensor:
    """Return log p(tokens), summed over all alignments, from log_probs (T', U + 1, V)."""
    paths = []
    for counts in alignments(len(log_probs), len(tokens), most):
        path, written = torch.zeros((), dtype=log_probs.dtype), 0
        for frame, count in zip(log_probs, counts, strict=True):
            for _ in range(count):
                path = path + frame[written, tokens[written]]
                written += 1
            path = path + frame[written, 0]
        paths.append(path)
    return torch.stack(paths).logsumexp(dim=0) if paths else torch.tensor(-math.inf)


CASES = [((1, 2), 3), ((2,), 4), ((), 2), ((3, 3, 1), 1), ((1, 1), 2)]
VOCAB_SIZE = 4


def test_loss_and_gradient_equal_those_of_an_enumeration_of_all_alignments() -> None:
    assert_loss_and_gradient(
        transducer_loss, lambda logits, tokens: -enumerated(logits.log_softmax(dim=-1), tokens), CASES, VOCAB_SIZE
    )


FAST_EMIT = 0.25


def with_fast_emit(logits: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Return log_probs (T', U + 1, V) of which the gradients of the next tokens will be multiplied by 1 + FAST_EMIT."""
    factors = torch.ones_like(logits)
    for written, token in enumerate(tokens):
        factors[:, written, token] = 1 + FAST_EMIT
    log_probs = logits.log_softmax(dim=-1)
    log_probs.register_hook(lambda gradient: gradient * factors)
    return log_probs


def test_fast_emit_multiplies_the_gradient_of_each_token_and_of_no_blank() -> None:
    """Equations of Yu et al. 2021, in a padded batch; the loss stays -log p(tokens)."""
    assert_loss_and_gradient(
        lambda *batch: transducer_loss(*batch, fast_emit=FAST_EMIT),
        lambda logits, tokens: -enumerated(with_fast_emit(logits, tokens), tokens),
        CASES,
        VOCAB_SIZE,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_fast_emit_in_other_precisions_is_close_to_float64_and_changes_no_loss(dtype: torch.dtype) -> None:
    logits = (3 * torch.randn(2, 40, 11, 7)).to(dtype)
    tokens, lengths, token_lengths = torch.randint(1, 7, (2, 10)), torch.tensor([40, 23]), torch.tensor([10, 4])
    results = []
    for own, fast_emit in ((logits, FAST_EMIT), (logits.double(), FAST_EMIT), (logits, 0.0)):
        leaf = own.clone().requires_grad_()
        loss = transducer_loss(leaf, tokens, lengths, token_lengths, fast_emit=fast_emit)
        results.append((loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]))
    (loss, gradient), (_, exact), (plain_loss, plain) = results
    assert torch.equal(loss, plain_loss)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient.double(), exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 4e-3)
    assert (gradient - plain).abs().max() > 0.1


def test_with_fast_emit_tokens_are_learnt_in_earlier_frames() -> None:
    """Each cell has logits of its own, so that the loss alone does not prefer any frame."""
    tokens, num_frames = torch.tensor([[1, 2]]), 12
    lengths = torch.tensor([num_frames]), torch.tensor([2])
    mean_frames = []
    for fast_emit in (0.0, 0.1, 1.0):
        logits = torch.zeros(1, num_frames, 3, 4, dtype=torch.float64, requires_grad=True)
        for _ in range(60):
            loss = transducer_loss(logits, tokens, *lengths, fast_emit=fast_emit)
            [gradient] = torch.autograd.grad(loss.sum(), logits)
            logits = (logits - gradient).detach().requires_grad_()
        emitted = logits.detach().softmax(dim=-1)[0, :, 0, 1]  # of the first token, in each frame that is reached
        reached = torch.cat([torch.ones(1, dtype=torch.float64), (1 - emitted).cumprod(dim=0)[:-1]])
        mean_frames.append(float((torch.arange(num_frames) * emitted * reached).sum()))
    assert mean_frames == sorted(mean_frames, reverse=True)
    assert mean_frames[0] - mean_frames[-1] > 0.5


def test_fast_emit_of_the_head_changes_the_gradient_and_no_loss() -> None:
    encoder_out, tokens = torch.randn(1, 4, DIM, dtype=torch.float64), (2, 1)
    results = []
    for fast_emit in (0.0, FAST_EMIT):
        made = head("stateless", f"head.fast_emit={fast_emit}", "head.ctc_weight=0")
        leaf = encoder_out.clone().requires_grad_()
        encoded = Encoded(leaf, torch.tensor([4]), {})
        [loss] = made.losses(encoded, targets_of(torch.tensor([tokens]), torch.tensor([2])))["loss"]
        results.append((loss.detach(), torch.autograd.grad(loss, leaf)[0]))
        logits = logits_of(made.predictor, made.joiner, leaf[0], tokens)
        log_probs = with_fast_emit(logits, tokens) if fast_emit else logits.log_softmax(dim=-1)
        expected = torch.autograd.grad(-enumerated(log_probs, tokens), leaf)[0]
        torch.testing.assert_close(results[-1][1], expected, rtol=0, atol=1e-12)
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.allclose(results[0][1], results[1][1])


def test_the_loss_equals_that_of_torchaudio() -> None:
    witness = pytest.importorskip("torchaudio.functional")
    logits, tokens, lengths, token_lengths = batch_of(CASES, VOCAB_SIZE)
    single = logits.detach().float().requires_grad_()
    num_frames, num_tokens = int(lengths.max()), int(token_lengths.max())
    longest = single[:, :num_frames, : num_tokens + 1].contiguous(), tokens[:, :num_tokens].int().contiguous()
    theirs = witness.rnnt_loss(*longest, lengths.int(), token_lengths.int(), blank=0, reduction="none")
    ours = transducer_loss(logits, tokens, lengths, token_lengths)
    torch.testing.assert_close(theirs.double(), ours, rtol=1e-5, atol=1e-5)  # torchaudio sums in float32
    [gradient], [exact] = torch.autograd.grad(theirs.sum(), single), torch.autograd.grad(ours.sum(), logits)
    torch.testing.assert_close(gradient.double(), exact, rtol=0, atol=1e-5)


def test_long_utterances_have_finite_losses_and_gradients_in_float32() -> None:
    logits = (5 * torch.randn(1, 300, 61, 5)).requires_grad_()
    tokens, lengths = torch.randint(1, 5, (1, 60)), (torch.tensor([300]), torch.tensor([60]))
    loss = transducer_loss(logits, tokens, *lengths)
    exact = transducer_loss(logits.double(), tokens, *lengths)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    [gradient] = torch.autograd.grad(loss, logits)
    assert gradient.isfinite().all()


def test_an_utterance_without_frames_has_probability_0() -> None:
    tokens, lengths = torch.tensor([[1], [1]]), torch.tensor([0, 2])
    loss = transducer_loss(torch.randn(2, 2, 2, 3), tokens, lengths, torch.tensor([1, 1]))
    assert loss.isinf().tolist() == [True, False]
    assert (
        transducer_loss(torch.zeros(2, 0, 2, 3), tokens, 0 * lengths, torch.tensor([1, 1])).tolist() == [math.inf] * 2
    )


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_one_call_of_a_prediction_network_equals_calls_token_by_token_and_ignores_later_tokens(
    predictor: str,
) -> None:
    network = head(predictor).predictor
    tokens = torch.tensor([[1, 2, 2, 3], [3, 1, 1, 2]])
    whole = network(tokens)
    state = network.initial_state(2)
    for place, column in enumerate([torch.zeros(2, dtype=torch.int64), *tokens.T]):
        out, state = network.step(column, state)
        torch.testing.assert_close(out, whole[:, place], rtol=0, atol=1e-12)
        assert state.shape[0] == 2
    torch.testing.assert_close(network(tokens[:, :2]), whole[:, :3], rtol=0, atol=1e-12)
    assert not torch.allclose(whole[0, 1], whole[1, 1])


def test_the_stateless_prediction_network_equals_the_papers_average_of_embeddings() -> None:
    network = head("stateless").predictor
    tokens = [0, 0, 3, 1]  # the network averages over two positions
    for place in range(1, len(tokens)):
        embedded = [network.embedding.weight[token] for token in tokens[place - 1 : place + 1]]
        average = torch.zeros(8, dtype=torch.float64)
        for one_head in network.positions:
            for vector, position in zip(embedded, one_head, strict=True):
                average = average + vector * (vector @ position) / (len(network.positions) * 2)
        expected = torch.nn.functional.silu(network.norm(network.linear(average)))
        torch.testing.assert_close(network(torch.tensor([[3, 1]]))[0, place - 1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_tokens", [1, 2, 3])
def test_the_convolution_of_a_prediction_network_equals_a_plain_sum_over_tokens_and_channels(num_tokens: int) -> None:
    """Before the first token there is the blank, and before the blank there are zeros."""
    network = head("stateless_conv", f"head.predictor.num_tokens={num_tokens}").predictor
    tokens = [0, 3, 1]
    for place in range(len(tokens)):
        expected = []
        for channel in range(8):
            begin = channel // 4 * 4  # the group's first channel
            total = torch.zeros((), dtype=torch.float64)
            for back in range(min(num_tokens, place + 1)):
                for part in range(4 * (num_tokens > 1)):
                    weight = network.convolve[0].weight[channel, part, num_tokens - 1 - back]
                    total = total + weight * network.embedding.weight[tokens[place - back], begin + part]
            total = total.clamp(min=0) if num_tokens > 1 else network.embedding.weight[tokens[place], channel]
            expected.append(total)
        actual = network(torch.tensor([tokens[1:]]))[0, place]
        torch.testing.assert_close(actual, torch.stack(expected), rtol=0, atol=1e-12)


def test_channels_of_a_prediction_network_that_form_no_groups_are_refused() -> None:
    with refused(InputError, "head.predictor.dim ... group_dim; got dim=8, group_dim=3"):
        head("stateless_conv", "head.predictor.group_dim=3")


def test_the_loss_of_the_head_is_the_weighted_sum_of_transducer_and_ctc_loss() -> None:
    made, encoder_out, tokens = head(), torch.randn(1, 4, DIM, dtype=torch.float64), (2, 1)
    losses = made.losses(
        Encoded(encoder_out, torch.tensor([4]), {}),
        targets_of(torch.tensor([tokens]), torch.tensor([2])),
    )
    transducer = -enumerated(log_probs(made, encoder_out[0], tokens), tokens)
    torch.testing.assert_close(losses["transducer"][0], transducer, rtol=0, atol=1e-12)
    weight = config("stateless")["ctc_weight"]
    torch.testing.assert_close(losses["loss"][0], (1 - weight) * transducer + weight * losses["ctc"][0])


def test_cells_is_the_number_of_elements_of_the_largest_tensor() -> None:
    for vocab_size in (4, 50):  # a vocabulary smaller and one larger than the joiner's dimension
        made, sizes = head(vocab_size=vocab_size), []
        made.joiner.output.register_forward_hook(
            lambda module, inputs, out, sizes=sizes: sizes.extend([inputs[0].numel(), out.numel()])
        )
        encoded = Encoded(torch.randn(3, 9, DIM, dtype=torch.float64), torch.tensor([9, 2, 5]), {})
        made.losses(encoded, targets_of(torch.ones(3, 4, dtype=torch.int64), torch.tensor([1, 4, 2])))
        assert max(sizes) == 3 * made.cells(9, 4)


def test_a_search_that_needs_a_joiner_is_refused_without_one_and_each_head_has_its_default_search() -> None:
    with refused(InputError, "decode=transducer_greedy ... head=ctc"):
        check_components(resolved("head=ctc", "decode=transducer_greedy"))
    assert resolved("head=transducer")["decode"]["name"] == "transducer_greedy"
    assert resolved("head=transducer", "decode=transducer_beam")["decode"]["name"] == "transducer_beam"
    assert resolved("head=ctc")["decode"]["name"] == "greedy"


def greedy(made: Any, max_symbols: int = 10) -> TransducerGreedy:
    return TransducerGreedy(made, Pieces(PIECES), as_written, max_symbols=max_symbols)  # type: ignore[arg-type]


def plain_greedy(made: Any, encoder_out: Tensor, max_symbols: int) -> tuple[list[int], float]:
    """Apply Graves' greedy search to one utterance, (T', D): frame by frame, token by token."""
    tokens: list[int] = []
    score = 0.0
    for frame in range(len(encoder_out)):
        for number in range(max_symbols + 1):
            row = log_probs(made, encoder_out[frame : frame + 1], tuple(tokens))[0, -1].detach()
            token = int(row.argmax())
            if token == 0 or number == max_symbols:
                score += float(row[0])
                break
            score, tokens = score + float(row[token]), [*tokens, token]
    return tokens, score


@pytest.mark.parametrize("max_symbols", [1, 3])
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_greedy_decoding_of_a_batch_equals_a_plain_loop_over_each_utterance(predictor: str, max_symbols: int) -> None:
    written = 0
    for seed in range(4):
        made, lengths = head(predictor, seed=seed), torch.tensor([9, 0, 4, 1, 12])
        encoder_out = torch.randn(len(lengths), 14, DIM, dtype=torch.float64)
        hypotheses = decoded(greedy(made, max_symbols), encoder_out, lengths)
        for [hypothesis], row, length in zip(hypotheses, encoder_out, lengths.tolist(), strict=True):
            tokens, score = plain_greedy(made, row[:length], max_symbols)
            assert hypothesis.tokens == tokens
            assert hypothesis.score == pytest.approx(score, abs=1e-9)
            written += len(tokens)
    assert written > 30, "some hypotheses must have tokens"


def test_junk_after_an_utterance_changes_no_hypothesis() -> None:
    made = head()
    assert_junk_changes_no_hypothesis([greedy(made), beam(made)])


def beam(made: Any, **settings: Any) -> TransducerBeam:
    return TransducerBeam(made, Pieces(PIECES), as_written, **search_settings("transducer_beam", **settings))  # type: ignore[arg-type]


@lru_cache
def small(predictor: str, num_frames: int, max_symbols: int) -> tuple[Any, Tensor, dict[tuple[int, ...], float]]:
    """Return a head, frames (T', D), and log p of all token sequences, by enumeration of all alignments."""
    made, encoder_out = head(predictor), torch.randn(num_frames, DIM, dtype=torch.float64)
    scores: dict[tuple[int, ...], float] = {}
    with torch.no_grad():
        for length in range(num_frames * max_symbols + 1):
            for tokens in product(range(1, len(PIECES)), repeat=length):
                scores[tokens] = float(enumerated(log_probs(made, encoder_out, tokens), tokens, max_symbols))
    return made, encoder_out, scores


@needs_kenlm
@pytest.mark.parametrize("fused", FUSED)
def test_a_wide_beam_finds_the_result_of_enumerating_all_alignments(fused: str, tmp_path: Path) -> None:
    for fusion, acoustic, hypotheses in wide_searches(fused, small, beam, tmp_path):
        assert_finds(hypotheses, acoustic, fusion)


@needs_kenlm
@pytest.mark.parametrize("fused", FUSED)
def test_tokens_that_are_left_out_early_would_not_have_reached_the_beam(
    fused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found() -> list[Any]:
        return [
            decoded(beam(head(seed=seed), beam_size=4, beam_threshold=3.0, **fusion), encoder_out[None], length)
            for seed, encoder_out in enumerate(torch.randn(6, 12, DIM, dtype=torch.float64))
        ]

    fusion, length = random_fusion(fused, 0).settings(tmp_path), torch.tensor([12])
    torch.manual_seed(0)
    pruned = found()
    monkeypatch.setattr(ShallowFusion, "at_most", lambda _: [math.inf] * len(PIECES))
    monkeypatch.setattr(ShallowFusion, "most", lambda _: math.inf)
    torch.manual_seed(0)
    assert pruned == found()


def test_a_beam_returns_at_most_beam_size_hypotheses_and_counts_no_path_twice() -> None:
    made, encoder_out = head(), torch.randn(1, 20, DIM, dtype=torch.float64)
    best = []
    for size in (1, 4, 32):
        [hypotheses] = decoded(beam(made, beam_size=size, max_symbols=20), encoder_out, torch.tensor([20]))
        assert len({tuple(hypothesis.tokens) for hypothesis in hypotheses}) == len(hypotheses) <= size
        for tokens, score, *_ in hypotheses:
            lengths = torch.tensor([20]), torch.tensor([len(tokens)])
            exact = transducer_loss(
                log_probs(made, encoder_out[0], tuple(tokens)).detach()[None], torch.tensor([tokens]), *lengths
            )
            assert score <= -float(exact) + 1e-9, "the score omits pruned paths"
        best.append(hypotheses[0].score)
    assert best == sorted(best)
