"""The moving average of the weights: its values, and the operations of an update."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from asr.core.training.lightning_internals import moving_average
from benchmarks.gpu.counts import ASKING


class Net(pl.LightningModule):
    """Linear layers, and a norm with buffers of floats and an integer."""

    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*(nn.Linear(7, 7) for _ in range(num_layers)), nn.BatchNorm1d(7)])

    def draw(self) -> None:
        """Draw all weights and buffers."""
        for tensor in self.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape) if tensor.is_floating_point() else torch.randint(99, tensor.shape))


def callback_for(net: Net, decay: float) -> Any:
    callback: Any = moving_average(decay)
    callback.setup(None, net, "fit")
    return callback


def update(callback: Any, net: Net, step: int) -> dict[str, Tensor]:
    """Call the callback after a batch, at which `step` steps are done, and return a copy of the average."""
    callback.on_train_batch_end(SimpleNamespace(global_step=step), net, None, None, 0)
    return {name: tensor.clone() for name, tensor in callback._average_model.module.state_dict().items()}


@pytest.mark.parametrize("decay", [0.999, 0.9, 0.3])
def test_the_average_equals_its_equation_in_float64(decay: float) -> None:
    """The tolerance is the error of 29 updates that each round values below 4 to float32 (half a unit is 1.2e-7)."""
    torch.manual_seed(1)
    net = Net()
    callback, expected = callback_for(net, decay), {}
    for step in range(1, 30):
        net.draw()
        average = update(callback, net, step)
        for name, tensor in net.state_dict().items():
            new = tensor.double()
            is_moved = step > 1 and tensor.is_floating_point()
            expected[name] = decay * expected[name] + (1 - decay) * new if is_moved else new
        for name, tensor in average.items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=0, atol=5e-6, msg=name)


@pytest.mark.parametrize("decay", [0.999, 0.3])
def test_an_average_of_weights_that_do_not_change_is_bit_identical_to_them(decay: float) -> None:
    net = Net()
    net.draw()
    callback = callback_for(net, decay)
    for step in range(1, 5):
        average = update(callback, net, step)
        assert all(torch.equal(average[name], tensor) for name, tensor in net.state_dict().items())


def test_a_batch_without_an_optimizer_step_does_not_change_the_average() -> None:
    net = Net()
    callback = callback_for(net, 0.9)
    before = update(callback, net, step=1)
    net.draw()
    after = update(callback, net, step=1)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_a_loaded_average_is_continued_even_if_the_callback_is_new() -> None:
    """With a changed `trainer.strategy`, a resumed run loads the average, but not the state of the callback."""
    net = Net()
    first = callback_for(net, 0.9)
    update(first, net, step=1)
    loaded = callback_for(net, 0.9)
    loaded._average_model.load_state_dict(first._average_model.state_dict())
    net.draw()
    expected = update(first, net, step=2)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in update(loaded, net, step=2).items())
    assert loaded._average_model.n_averaged == 2


def test_an_update_is_one_operation_for_all_weights_and_none_waits() -> None:
    counts: Counter[str] = Counter()

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            counts[func.overloadpacket.__name__] += 1
            return func(*args, **(kwargs or {}))

    net = Net(num_layers=50)
    callback = callback_for(net, 0.9)
    update(callback, net, step=1)
    with Operations():
        callback.on_train_batch_end(SimpleNamespace(global_step=2), net, None, None, 0)
    assert counts.total() == 3  # one for weights and buffers of floats, one for the integer, one for the counter
    assert not counts.keys() & set(ASKING)
