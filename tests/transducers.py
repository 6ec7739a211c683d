"""Small heads, batches with junk, and checks that the tests of transducers with and without durations share."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.core.build import component
from tests.conftest import CONF, block_dims
from tests.fusion import NUMBERS, Fusion, Trigrams
from tests.identity import decoded

PREDICTORS = sorted(path.stem for path in (CONF / "head" / "predictor").glob("*.yaml"))
PIECES = ["", " ", "a", "b"]
DIM = 6
SMALL = ("head.predictor.dim=8", "head.joint_dim=7")
WIDE = {"beam_size": 10_000, "beam_threshold": math.inf, "tokens_per_frame": 100}
FUSED = ["nothing", "words", "tokens", "spelled", "lexicon", "hotwords", "all"]

Case = tuple[tuple[int, ...], int]  # tokens; number of frames

needs_kenlm = pytest.mark.skipif(find_spec("kenlm") is None, reason="camel-kenlm is not installed")


def random_head(config: dict[str, Any], vocab_size: int, seed: int, scale: float) -> Any:
    """Make a float64 head with random weights; `scale` multiplies the joiner's output to make it far from uniform."""
    torch.manual_seed(seed)
    made = component("head", config)(DIM, block_dims(DIM), vocab_size).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(0.7 * torch.randn_like(parameter))
        made.joiner.output.weight *= scale
    return made


def logits_of(predictor: Any, joiner: Any, encoder_out: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return logits (T', U + 1, ...) of frames (T', D) and tokens, token by token."""
    out, state = predictor.step(torch.tensor([0]), predictor.initial_state(1))
    outs = [out]
    for token in tokens:
        out, state = predictor.step(torch.tensor([token]), state)
        outs.append(out)
    logits: Tensor = joiner(joiner.of_frames(encoder_out)[:, None], joiner.of_tokens(torch.cat(outs))[None])
    return logits


def batch_of(cases: Sequence[Case], width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return logits (B, T', U + 1, width), tokens, lengths and token lengths, with junk as padding."""
    lengths = torch.tensor([frames for _, frames in cases])
    token_lengths = torch.tensor([len(tokens) for tokens, _ in cases])
    logits = torch.full((len(cases), 7, 6, width), math.nan, dtype=torch.float64)
    logits[:, ::2] = math.inf
    tokens = torch.full((len(cases), 5), 10**6)
    for row, (ids, frames) in enumerate(cases):
        logits[row, :frames, : len(ids) + 1] = 2 * torch.randn(frames, len(ids) + 1, width, dtype=torch.float64)
        tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
    return logits.requires_grad_(), tokens, lengths, token_lengths


def assert_loss_and_gradient(
    loss_of: Callable[..., Tensor],
    reference: Callable[[Tensor, tuple[int, ...]], Tensor],
    cases: Sequence[Case],
    width: int,
) -> None:
    """Compare loss and gradient of a padded batch with those that `reference` gives for each row's (T', U + 1, V)."""
    logits, *others = batch_of(cases, width)
    loss = loss_of(logits, *others)
    [gradient] = torch.autograd.grad(loss @ torch.arange(1.0, len(cases) + 1, dtype=torch.float64), logits)
    for row, (ids, frames) in enumerate(cases):
        own = logits[row, :frames, : len(ids) + 1].detach().requires_grad_()
        expected = reference(own, ids)
        [own_gradient] = torch.autograd.grad(expected * (row + 1), own)
        torch.testing.assert_close(loss[row], expected, rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient[row, :frames, : len(ids) + 1], own_gradient, rtol=0, atol=1e-12)
        gradient[row, :frames, : len(ids) + 1] = 0
    assert not gradient.any(), "padding has no gradient"


def assert_junk_changes_no_hypothesis(decoders: Iterable[Any]) -> None:
    """Check that neither NaN after the end of an utterance nor the rest of the batch changes its hypothesis."""
    lengths = torch.tensor([7, 3])
    encoder_out = torch.randn(2, 7, DIM, dtype=torch.float64)
    junk = encoder_out.clone()
    junk[1, 3:] = math.nan
    for decoder in decoders:
        assert decoded(decoder, junk, lengths) == decoded(decoder, encoder_out, lengths)
        alone = decoded(decoder, encoder_out[1:, :3], lengths[1:])
        assert alone[0][0].tokens == decoded(decoder, junk, lengths)[1][0].tokens


def random_fusion(fused: str, seed: int) -> Fusion:
    """Return a plain reference implementation of shallow fusion, with random weights and language models.

    `fused`, an item of FUSED, selects what is fused with the model: language models, a lexicon or hotwords.
    """
    draw = random.Random(f"{fused} {seed}")
    names = [piece.replace(" ", "\N{LOWER ONE EIGHTH BLOCK}") for piece in PIECES[1:]]
    words = {"words": ["a", "b", "ab", "ba"], "tokens": names, "spelled": ["a", "ba"], "all": ["a", "ab", "ba"]}
    return Fusion(
        PIECES,
        Trigrams(words[fused], draw) if fused in words else None,
        "token" if fused == "tokens" else "word",
        ["a", "ab", "bb"] if fused in ("lexicon", "all") else None,
        ["a b", "ba"] if fused in ("hotwords", "all") else (),
        {name: draw.uniform(0, 2) for name in NUMBERS},
        Trigrams("ab", draw) if fused == "spelled" else None,
    )


def wide_searches(
    fused: str, spelled: Callable[[str, int, int], tuple[Any, Tensor, Any]], beam: Callable[..., Any], folder: Path
) -> Iterator[tuple[Fusion, Any, list[Any]]]:
    """Search with a beam that prunes nothing, for each predictor.

    Args:
        fused: one of FUSED.
        spelled: makes a head, frames (T', D), and a reference of all hypotheses, from a predictor, T', and the
            maximum number of tokens per frame.
        beam: makes a search from a head and settings.
        folder: folder for files of language models.

    Yields:
        The fusion, the reference, and the n-best list.
    """
    for seed, predictor in enumerate(PREDICTORS):
        fusion = random_fusion(fused, seed)
        settings = fusion.settings(folder)
        for num_frames, max_symbols in ((3, 1), (2, 2)):
            made, encoder_out, reference = spelled(predictor, num_frames, max_symbols)
            search = beam(made, **WIDE, **settings, max_symbols=max_symbols)
            [hypotheses] = decoded(search, encoder_out[None], torch.tensor([num_frames]))
            yield fusion, reference, hypotheses


def assert_finds(hypotheses: Sequence[Any], acoustic: dict[tuple[int, ...], float], fusion: Fusion) -> None:
    """Compare an n-best list with the enumerated acoustic scores of all hypotheses plus their fusion scores."""
    gains = {tokens: fusion.score(tokens) for tokens in acoustic}
    expected = {tokens: acoustic[tokens] + gain for tokens, gain in gains.items() if gain is not None}
    scores = [hypothesis.score for hypothesis in hypotheses]
    assert scores == sorted(scores, reverse=True)
    by_tokens = {tuple(hypothesis.tokens): hypothesis.score for hypothesis in hypotheses}
    assert by_tokens == pytest.approx(expected, abs=1e-4)  # the language model's figures are float32
