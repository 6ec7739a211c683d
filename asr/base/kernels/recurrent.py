"""Recurrent cells over frames, step by step; torch's cells are faster, but export fixes their number of frames."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


def recur(cell: nn.LSTM | nn.GRU, x: Tensor) -> Tensor:
    """Run a cell from the first frame to the last.

    Args:
        cell: torch's cell with one layer and one direction, batch first. While a program is exported, only its weights
            are used, because torch exports the cell for a fixed number of frames.
        x: (B, T, D).

    Returns:
        (B, T, H), the state at each frame.
    """
    if not torch.compiler.is_exporting():
        return run_lstm(cell, x)[0] if isinstance(cell, nn.LSTM) else cell(x)[0]
    form = lstm_plainly if isinstance(cell, nn.LSTM) else gru_plainly
    return form(x, *cell.all_weights[0])


def run_lstm(
    layers: nn.LSTM, x: Tensor, state: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run torch's LSTM; in bfloat16 autocast on a processor without AVX-512, compute in float32.

    On such a processor torch raises an error, because oneDNN has no LSTM in bfloat16 for it.

    Args:
        layers: torch's LSTM, batch first.
        x: (B, T, D).
        state: state and memory of each layer, (L, B, H) each; None: zeros.

    Returns:
        (B, T, H), and the new state and memory.
    """
    out: tuple[Tensor, tuple[Tensor, Tensor]]
    if x.device.type == "cpu" and torch.is_autocast_enabled("cpu") and not can_run_in_bfloat16():
        with torch.autocast("cpu", enabled=False):
            out = layers(x.float(), None if state is None else (state[0].float(), state[1].float()))
    else:
        out = layers(x, state)
    return out


def can_run_in_bfloat16() -> bool:
    """Return whether torch's LSTM runs in bfloat16 on this processor; with oneDNN it needs AVX-512 or equivalent."""
    return not torch.backends.mkldnn.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def lstm_plainly(x: Tensor, weight_x: Tensor, weight_h: Tensor, bias_x: Tensor, bias_h: Tensor) -> Tensor:
    """Run a long short-term memory.

    The rows of the weights, (4 H, D) and (4 H, H), belong to input gate, forget gate, new value and output gate.
    """

    def step(state: tuple[Tensor, Tensor], given: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        hidden, memory = _remember(given + linear(state[0], weight_h, bias_h), state[1])
        return (hidden, memory), hidden.clone()

    start = x.new_zeros(x.shape[0], weight_h.shape[1])
    return _scan(step, (start, start.clone()), linear(x, weight_x, bias_x))


def step_lstm(layers: nn.LSTM, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Advance by one frame.

    Args:
        layers: torch's LSTM with one direction, batch first. It is called in training (for its dropout) and on a
            GPU. In inference on a CPU, and in an exported program, only its weights are used. On a CPU, torch's LSTM
            would repack the weights for each frame, which takes ten times as long as the frame (dimension 640, one
            utterance, one core). In an exported program, its state would have other dimensions.
        x: (B, D).
        hidden: state of each layer, (L, B, H).
        memory: memory of each layer, (L, B, H).

    Returns:
        State and memory after the frame; the output is the last layer's state.
    """
    if not torch.compiler.is_exporting() and (layers.training or x.device.type != "cpu"):
        return run_lstm(layers, x[:, None], (hidden, memory))[1]
    states, memories = [], []
    for weights, state, cells in zip(layers.all_weights, hidden, memory, strict=True):
        weight_x, weight_h, bias_x, bias_h = weights
        x, cells = _remember(linear(x, weight_x, bias_x) + linear(state, weight_h, bias_h), cells)
        states.append(x)
        memories.append(cells)
    return torch.stack(states), torch.stack(memories)


def _remember(gates: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Return state and new memory from the gates, (B, 4 H), and a memory, (B, H)."""
    input_gate, forget_gate, new, output_gate = gates.chunk(4, dim=-1)
    memory = forget_gate.sigmoid() * memory + input_gate.sigmoid() * new.tanh()
    return output_gate.sigmoid() * memory.tanh(), memory


def gru_plainly(x: Tensor, weight_x: Tensor, weight_h: Tensor, bias_x: Tensor, bias_h: Tensor) -> Tensor:
    """Run a gated recurrent unit.

    The rows of the weights, (3 H, D) and (3 H, H), belong to reset gate, update gate and new value.
    """

    def step(hidden: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        reset_x, update_x, new_x = given.chunk(3, dim=-1)
        reset_h, update_h, new_h = linear(hidden, weight_h, bias_h).chunk(3, dim=-1)
        update = (update_x + update_h).sigmoid()
        new = (new_x + (reset_x + reset_h).sigmoid() * new_h).tanh()
        hidden = (1 - update) * new + update * hidden
        return hidden, hidden.clone()

    return _scan(step, x.new_zeros(x.shape[0], weight_h.shape[1]), linear(x, weight_x, bias_x))


def _scan(step: Callable[..., tuple[object, Tensor]], start: object, given: Tensor) -> Tensor:
    """Apply `step` to the frames of `given`, (B, T, G), in order; an exported program accepts any T."""
    from torch._higher_order_ops.scan import scan  # imported here because it loads the compiler

    return scan(step, start, given.transpose(0, 1))[1].transpose(0, 1)
