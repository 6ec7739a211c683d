"""Neural language models, compared with their equations in plain loops, for any segments and any batch."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.base.settings.conf import default_settings, names
from asr.core.build import build_token_model
from asr.errors import InputError
from asr.interfaces import BOUNDARY_ID, TokenModel
from tests.refusals import refused
from tests.test_attention import encoding

V = 11
SMALL = {
    "lstm": {"embedding_dim": 6, "dim": 10, "num_layers": 2, "dropout": 0.0},
    "transformer_xl": {"dim": 8, "num_layers": 2, "num_heads": 2, "dropout": 0.0, "segment": 3, "memory": 5},
}


def small(name: str, **changes: Any) -> Any:
    """Make a small float64 version of the model conf/token_model/<name>.yaml; change every parameter at random."""
    config = default_settings("token_model", name) | SMALL[name] | changes
    model: Any = build_token_model(config, V)
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def texts(batch: int, tokens: int) -> Tensor:
    """Return random tokens (B, U) after the boundary that begins each text."""
    drawn = torch.randint(1, V, (batch, tokens - 1))
    return torch.nn.functional.pad(drawn, (1, 0), value=BOUNDARY_ID)


def whole(model: TokenModel, tokens: Tensor) -> Tensor:
    return model(tokens, model.initial_state(len(tokens)))[0]


@pytest.fixture(params=names("token_model"))
def model(request: pytest.FixtureRequest) -> Any:
    return small(request.param)


@pytest.fixture(autouse=True)
def _in_float64() -> Any:
    """Use float64 by default, also for positions: in float32, vectorised and scalar sines differ in the last bit."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_probabilities_sum_to_one(model: Any) -> None:
    log_probs = whole(model, texts(3, 14))
    assert log_probs.shape == (3, 14, V)
    torch.testing.assert_close(log_probs.exp().sum(dim=-1), torch.ones(3, 14), rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_probabilities_of_all_texts_sum_to_one(model: Any) -> None:
    """The sum is over texts of at most two tokens, and over prefixes that represent all longer texts."""
    first = whole(model, torch.tensor([[BOUNDARY_ID]]))[0, 0].exp()
    total = first[BOUNDARY_ID]
    for token in range(1, V):
        second = whole(model, torch.tensor([[BOUNDARY_ID, token]]))[0, 1].exp()
        total = total + first[token] * second.sum()
    assert float(total) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("lengths", [[1] * 17, [4, 6, 7], [16, 1], [5, 0, 12]], ids=str)
def test_processing_segment_by_segment_equals_processing_the_whole_text(model: Any, lengths: list[int]) -> None:
    """The text has 17 tokens, more than the Transformer-XL's memory of 5."""
    tokens, state, parts = texts(3, 17), model.initial_state(3), []
    for part in tokens.split(lengths, dim=1):
        if part.shape[1]:
            log_probs, state = model(part, state)
            parts.append(log_probs)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole(model, tokens), rtol=0, atol=1e-10)


def test_neither_later_tokens_nor_padding_affect_a_token(model: Any) -> None:
    short, long = texts(1, 6), texts(1, 13)
    padded = torch.cat([torch.nn.functional.pad(short, (0, 7), value=3), long])
    together = whole(model, padded)
    torch.testing.assert_close(together[:1, :6], whole(model, short), rtol=0, atol=1e-10)
    torch.testing.assert_close(together[1:], whole(model, long), rtol=0, atol=1e-10)


def test_states_of_texts_of_any_lengths_can_be_joined_in_a_batch_and_selected_by_index(model: Any) -> None:
    tokens = [texts(1, length) for length in (1, 4, 9, 2)]
    states = [model(text, model.initial_state(1))[1] for text in tokens]
    nexts = torch.tensor([[4], [7], [1], [1]])
    log_probs, joined = model(nexts, model.join(states))
    order = [2, 0, 3, 3]
    chosen = {name: values[order] for name, values in joined.items()}
    again, _ = model(nexts[order] + 1, chosen)
    for row, (text, token) in enumerate(zip(tokens, nexts, strict=True)):
        alone = whole(model, torch.cat([text, token[None]], dim=1))[:, -1]
        torch.testing.assert_close(log_probs[row : row + 1, 0], alone, rtol=0, atol=1e-10)
    for row, index in enumerate(order):
        text = torch.cat([tokens[index], nexts[index : index + 1], nexts[index : index + 1] + 1], dim=1)
        torch.testing.assert_close(again[row : row + 1, 0], whole(model, text)[:, -1], rtol=0, atol=1e-10)


def attention_by_loops(attention: Any, x: Tensor, memory: int) -> Tensor:
    """Compute the attention of each token of a text (U, D) to itself and the `memory` tokens before it.

    The equations are in arXiv:1901.02860, section 3.3.
    """
    dim, heads = x.shape[1], attention.num_heads
    size = dim // heads
    query, key, value = attention.qkv(x).split(dim, dim=-1)
    rows = []
    for i in range(len(x)):
        mixed = []
        for h in range(heads):
            head = slice(h * size, (h + 1) * size)
            u, v = attention.u[h, 0], attention.v[h, 0]
            scores, seen = [], range(max(0, i - memory), i + 1)
            for j in seen:
                r = attention.position(torch.tensor(encoding(i - j, dim)))[head]
                q, k = query[i, head], key[j, head]
                scores.append((q @ k + q @ r + u @ k + v @ r) / math.sqrt(size))
            weights = torch.stack(scores).softmax(dim=0)
            mixed.append(sum(weight * value[j, head] for weight, j in zip(weights, seen, strict=True)))
        rows.append(torch.cat(mixed))
    return attention.output(torch.stack(rows))


def test_the_transformer_xl_equals_its_equations() -> None:
    model = small("transformer_xl")
    tokens = texts(1, 12)
    x = model.embedding.weight[tokens[0]] * math.sqrt(8)
    for block in model.blocks:
        x = x + attention_by_loops(block.attention, block.norm_attention(x), model.memory)
        x = x + block.feed_forward(block.norm_feed_forward(x))
    logits = model.norm_output(x) @ model.embedding.weight.T + model.embedding.bias
    torch.testing.assert_close(whole(model, tokens)[0], logits.log_softmax(dim=-1), rtol=0, atol=1e-10)


def test_the_gradient_of_the_transformer_xl_stops_at_the_start_of_the_segment() -> None:
    """arXiv:1901.02860, section 3.2: the memory of earlier segments has no gradient."""
    model = small("transformer_xl", segment=4, memory=4)
    tokens = torch.tensor([[BOUNDARY_ID, 1, 2, 3, 4, 5, 6, 7]])
    whole(model, tokens)[0, 7, 9].backward()
    of_embedding = model.blocks[0].attention.qkv.weight.grad
    expected = model.state_dict()
    again = small("transformer_xl", segment=4, memory=4)
    again.load_state_dict(expected)
    with torch.no_grad():
        _, state = again(tokens[:, :4], again.initial_state(1))
    again(tokens[:, 4:], state)[0][0, 3, 9].backward()
    torch.testing.assert_close(of_embedding, again.blocks[0].attention.qkv.weight.grad, rtol=0, atol=1e-10)


def test_the_lstm_equals_its_equations() -> None:
    """The reference computes one layer, gate by gate."""
    model = small("lstm", num_layers=1)
    tokens = texts(1, 7)
    weight_x, weight_h, bias_x, bias_h = model.cells.all_weights[0]
    output, cell, rows = torch.zeros(10), torch.zeros(10), []
    for token in tokens[0]:
        x = model.embedding.weight[token] * math.sqrt(6)
        i, f, g, o = (weight_x @ x + bias_x + weight_h @ output + bias_h).chunk(4)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        output = o.sigmoid() * cell.tanh()
        rows.append(model.embedding.weight @ model.project(output) + model.embedding.bias)
    torch.testing.assert_close(whole(model, tokens)[0], torch.stack(rows).log_softmax(dim=-1), rtol=0, atol=1e-10)


def test_dropout_is_active_only_in_training() -> None:
    for name in names("token_model"):
        model = small(name, dropout=0.5)
        tokens = texts(2, 9)
        assert torch.equal(whole(model, tokens), whole(model, tokens))
        model.train()
        assert not torch.equal(whole(model, tokens), whole(model, tokens))


def test_num_heads_must_divide_the_dimension() -> None:
    must = "token_model.dim ... dim=8 ... num_heads=3"
    with refused(InputError, must):
        small("transformer_xl", num_heads=3)


def test_a_file_of_another_class_is_not_a_token_model(tmp_path: Path) -> None:
    with refused(InputError, "token_model.name ... asr/components/token_model/output.py"):
        build_token_model({"name": "output"}, V)
