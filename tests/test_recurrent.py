"""Recurrent encoders give the outputs of torch on packed sequences; exported encoders take any number of frames."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from asr.base.kernels import recurrent
from asr.components.encoder.cell.gru import GRU
from asr.components.encoder.cell.lstm import LSTM
from asr.components.encoder.recurrent import Recurrent
from asr.components.head.predictor.lstm import LSTMPredictor
from asr.components.token_model.lstm import LSTMTokenModel
from asr.errors import InputError
from asr.lengths import padding_mask
from tests.refusals import refused
from tests.test_transformer import NoSubsampling

DIM, LAYERS = 6, 3
LENGTHS = torch.tensor([5, 9, 1])
CELLS = pytest.mark.parametrize(("cell", "theirs"), [(LSTM, nn.LSTM), (GRU, nn.GRU)])


def make(cell: Any, bidirectional: bool, dim: int = DIM) -> Recurrent:
    return Recurrent(
        dim,
        dim=dim,
        num_layers=LAYERS,
        bidirectional=bidirectional,
        dropout=0.0,
        subsampling=NoSubsampling,
        cell=cell,
    ).double()


def torchs_with_the_weights_of(encoder: Recurrent, theirs: Any, bidirectional: bool) -> Any:
    """Return one torch module that has all layers and directions, and the weights of `encoder`."""
    stack = theirs(DIM, DIM // (1 + bidirectional), LAYERS, bidirectional=bidirectional, batch_first=True).double()
    weights = {}
    for layer, block in enumerate(encoder.blocks):
        for direction, suffix in enumerate(["", "_reverse"][: 1 + bidirectional]):
            own = block.cells[direction].rnn.state_dict()
            weights |= {f"{name.removesuffix('_l0')}_l{layer}{suffix}": weight for name, weight in own.items()}
    stack.load_state_dict(weights)
    return stack


@pytest.mark.parametrize("bidirectional", [False, True])
@CELLS
def test_outputs_and_gradients_equal_those_of_torch_on_packed_sequences(
    cell: Any, theirs: Any, bidirectional: bool
) -> None:
    encoder = make(cell, bidirectional)
    stack = torchs_with_the_weights_of(encoder, theirs, bidirectional)
    x = torch.randn(3, 11, DIM, dtype=torch.float64, requires_grad=True)
    padding = padding_mask(LENGTHS, 11)
    out = encoder(x.masked_fill(padding[:, :, None], 1e3), LENGTHS).out
    packed = pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False)
    plain, _ = pad_packed_sequence(stack(packed)[0], batch_first=True, total_length=11)
    torch.testing.assert_close(out[~padding], plain[~padding], rtol=0, atol=1e-12)  # float64 rounding
    weights = torch.randn_like(out)[~padding]
    (ours,), (expected,) = (torch.autograd.grad((frames[~padding] * weights).sum(), [x]) for frames in (out, plain))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)


@CELLS
@torch.no_grad()
def test_an_exported_cell_processes_any_number_of_frames_step_by_step(cell: Any, theirs: Any) -> None:
    ours = cell(4, 3).double()
    program = export(
        ours, (torch.zeros(2, 7, 4).double(),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    ).module()
    for shape in ((1, 1), (2, 7), (5, 40)):
        x = torch.randn(*shape, 4, dtype=torch.float64)
        torch.testing.assert_close(program(x), ours.rnn(x)[0], rtol=0, atol=1e-12)


def test_an_odd_dim_for_two_directions_is_refused_in_one_line() -> None:
    with refused(InputError, "encoder.dim", got=5):
        make(LSTM, bidirectional=True, dim=5)


@pytest.mark.parametrize("given", [None, torch.bfloat16])
def test_in_bfloat16_on_a_processor_without_avx512_an_lstm_computes_in_float32(
    given: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recurrent, "can_run_in_bfloat16", lambda: False)
    layers, x = torch.nn.LSTM(3, 4, 2, batch_first=True), torch.randn(2, 5, 3)
    state = None if given is None else (torch.zeros(2, 2, 4, dtype=given), torch.zeros(2, 2, 4, dtype=given))
    with torch.autocast("cpu", torch.bfloat16):
        out, (hidden, memory) = recurrent.run_lstm(layers, x, state)
    expected, (expected_hidden, expected_memory) = layers(x)
    assert torch.equal(out, expected)
    assert torch.equal(hidden, expected_hidden)
    assert torch.equal(memory, expected_memory)


def test_encoder_prediction_network_and_language_model_run_in_bfloat16_on_this_processor() -> None:
    predictor = LSTMPredictor(7, dim=4, num_layers=1, dropout=0.0, trains_blank=True)
    token_model = LSTMTokenModel(7, embedding_dim=3, dim=4, num_layers=1, dropout=0.0)
    tokens = torch.tensor([[1, 2], [3, 4]])
    with torch.autocast("cpu", torch.bfloat16):
        outputs = [
            LSTM(3, 4)(torch.randn(2, 5, 3)),
            predictor(tokens),
            predictor.step(tokens[:, 0], predictor.initial_state(2))[0],
            token_model(tokens, token_model.initial_state(2))[0],
        ]
    assert all(output.isfinite().all() for output in outputs)
