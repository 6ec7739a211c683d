"""An encoder whose blocks have two strides, that of docs/guide/extend.md, trains like the other encoders."""

import copy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from asr.apps.check.heads import check_blocks
from asr.apps.check.network import NUM_MEL_BINS, model_of, unlike_new
from asr.base.settings import plugins
from asr.check import main as check
from asr.components.encoder.stack import numbered_blocks, run_blocks, with_blocks
from asr.components.head.ctc_intermediate import CTCIntermediate
from asr.core.build import build_optimizer, component
from asr.core.recognition.model import Model
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.core.training.task import TrainingTask
from asr.errors import InputError
from asr.interfaces import NO_TAPS, Encoded, NamedBlocks, Taps
from asr.lengths import Lengths, padding_mask
from tests.conftest import block_dims, resolved, tone_corpus
from tests.refusals import refused
from tests.targets import targets_of
from tests.test_fsdp import SHORT, assert_equal_training, trained
from tests.test_heads import plain_ctc
from tests.test_readme import files_of_guide

LAB = "named_blocks_lab"
FILES = [
    *("encoder/two_strides.py", "conf/encoder/two_strides.yaml"),
    *("head/middle_ctc.py", "conf/head/middle_ctc.yaml"),
]
SETTINGS = {"name": "two_strides", "dim": 6, "num_layers": 2, "dropout": 0.0}
NAMES = ["stacks.0.blocks.0", "stacks.0.blocks.1", "stacks.1.blocks.0", "stacks.1.blocks.1"]
LENGTHS, TOKENS = (61, 90), ([1, 2, 2], [3])


def use(folder: Path) -> None:
    """Find the encoder in this process."""
    sys.path.insert(0, str(folder))
    plugins.use([LAB])


@pytest.fixture(autouse=True)
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a package that has the encoder and the head of the guide."""
    for name in FILES:
        file = tmp_path / LAB / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(files_of_guide()[f"mylab/speech/{name}"])
    (tmp_path / LAB / "__init__.py").touch()
    monkeypatch.setattr(plugins, "_named", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    use(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == LAB]:
        del sys.modules[name]


def make_model(head: str = "ctc_intermediate", **settings: Any) -> Model:
    torch.manual_seed(0)
    return unlike_new(model_of(SETTINGS | settings, resolved(f"head={head}")["head"]).double())


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(len(LENGTHS), max(LENGTHS), NUM_MEL_BINS, generator=generator, dtype=torch.float64)
    return features, torch.tensor(LENGTHS)


def losses_of(model: Model) -> Any:
    tokens = torch.tensor([[1, 2, 2], [3, 0, 0]])
    return model.head.losses(model(*batch()), targets_of(tokens, torch.tensor([3, 1])))


def test_the_checks_of_a_package_accept_the_encoder(capsys: pytest.CaptureFixture[str]) -> None:
    assert check([LAB]) == 0, capsys.readouterr().out


def test_blocks_have_their_names_in_the_state_dict_and_their_own_strides() -> None:
    model = make_model()
    blocks = dict(model.encoder.named_blocks())
    assert [*blocks] == NAMES
    assert [block.stride for block in blocks.values()] == [4, 4, 8, 8]
    assert all(model.get_submodule(f"encoder.{name}") is block.module for name, block in blocks.items())


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"name": "stacks.0.blocks.9"}, "named_blocks; got 'stacks.0.blocks.9'"),
        ({"dim": 5}, "Block.dim ... stacks.0.blocks.0 ... 6; got 5"),
        ({"stride": 8}, "Block.stride ... stacks.0.blocks.0; got 8"),
    ],
    ids=["name", "dim", "stride"],
)
def test_a_wrong_description_of_a_block_is_refused(
    changed: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model("ctc").float()
    (name, block), *others = model.encoder.named_blocks()
    block = block._replace(**{key: value for key, value in changed.items() if key != "name"})
    wrong = [(changed.get("name", name), block), *others]
    monkeypatch.setattr(model.encoder, "named_blocks", lambda: wrong, raising=False)
    with refused(InputError, expected):
        check_blocks(model)


def plain_outputs(model: Model, features: Tensor) -> list[Tensor]:
    """Compute the output of each block, (T', D), for features (T, F), frame by frame."""
    weights, x, outs = model.state_dict(), features, []
    for stack, joined in ((0, 4), (1, 2)):
        frames = [torch.cat([*x[begin : begin + joined]]) for begin in range(0, len(x), joined)]
        begin = f"encoder.stacks.{stack}"
        weight, bias = weights[f"{begin}.linear.weight"], weights[f"{begin}.linear.bias"]
        x = torch.stack([weight[:, : len(frame)] @ frame + bias for frame in frames])
        for number in range(2):
            block = f"{begin}.blocks.{number}"
            norm = nn.LayerNorm(SETTINGS["dim"]).double()  # type: ignore[arg-type]
            norm.load_state_dict({kind: weights[f"{block}.norm.{kind}"] for kind in ("weight", "bias")})
            inner, kernel = norm(x), weights[f"{block}.convolution.weight"]
            after = []
            for place in range(len(x)):
                near = [(place + tap - 1, kernel[:, :, tap]) for tap in range(3) if 0 <= place + tap - 1 < len(x)]
                total = sum((matrix @ inner[other] for other, matrix in near), weights[f"{block}.convolution.bias"])
                after.append(x[place] + total / (1 + (-total).exp()))
            x = torch.stack(after)
            outs.append(x)
    return outs


def test_the_intermediate_loss_counts_the_frames_of_the_tapped_block() -> None:
    """The head taps the last block of stride 4; the output has stride 8."""
    model = make_model()
    losses, head = losses_of(model), model.head
    assert isinstance(head, CTCIntermediate)
    assert head.tapped == [1]
    features, lengths = batch()
    encoded = model(features, lengths)
    assert encoded.lengths.tolist() == [8, 12]
    assert encoded.blocks[1].lengths.tolist() == [16, 23]
    linear = head.ctc.linear
    for row, tokens in enumerate(TOKENS):
        outs = plain_outputs(model, features[row, : LENGTHS[row]])
        torch.testing.assert_close(encoded.out[row, : encoded.lengths[row]], outs[-1], rtol=0, atol=1e-10)
        intermediate, last = (plain_ctc(out, linear.weight, linear.bias, tokens) for out in (outs[1], outs[-1]))
        expected = {"intermediate_ctc": intermediate, "last_ctc": last}
        expected["loss"] = (1 - head.weight) * last + head.weight * intermediate
        for name, loss in expected.items():
            torch.testing.assert_close(losses[name][row], loss, rtol=0, atol=1e-10)


def test_the_largest_tensor_of_a_head_is_that_of_the_tapped_block_with_the_most_frames() -> None:
    assert make_model().reference.cells(10, 3) == 2 * make_model("ctc").reference.cells(10, 3)


class Narrow(nn.Module):
    """An encoder whose blocks have dimension 5 and stride 8; its output has another dimension, and stride 4."""

    output_dim, stride, streaming = NUM_MEL_BINS, 4, None

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(NUM_MEL_BINS, 5), nn.Linear(5, 5)])

    def named_blocks(self) -> NamedBlocks:
        return numbered_blocks("blocks", self.blocks, 5, 8)

    def forward(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded:
        out, lengths = features[:, ::4], self.output_lengths(feature_lengths)
        x = out[:, 1::2]  # one of two frames; a last frame without a pair is dropped
        padding = padding_mask(lengths // 2, x.shape[1])
        x, tapped = run_blocks(self.blocks, x, padding, taps, lambda block, x: block(x))
        return Encoded(out, lengths, with_blocks(x, lengths // 2, tapped).blocks)

    @staticmethod
    def output_lengths(feature_lengths: Lengths) -> Lengths:
        return (feature_lengths + 3) // 4


def test_an_utterance_is_dropped_if_a_tapped_block_has_too_few_frames_for_its_tokens() -> None:
    model = make_model()
    model.encoder = Narrow().double()
    model.head = component("head", {"name": "middle_ctc", "weight": 0.5})(NUM_MEL_BINS, block_dims(5, 2), 8).double()
    reference, tokens, fit = model.reference, [1, 2, 2], []
    for frames in range(8, 60):
        fit.append(reference.output_lengths(frames) >= reference.min_frames(tokens))
        features = torch.randn(1, frames, NUM_MEL_BINS, dtype=torch.float64)
        encoded = model(features, torch.tensor([frames]))
        losses = model.head.losses(encoded, targets_of(torch.tensor([tokens]), torch.tensor([3])))
        assert losses["loss"].isfinite() or not fit[-1], frames
    assert set(fit) == {False, True}


def test_a_tapped_block_of_another_dimension_is_refused_by_name() -> None:
    with refused(InputError, "6 ... encoder.blocks.1 ... 12", cure="head.num_intermediate"):
        CTCIntermediate(6, block_dims(6) | {"blocks.1": 12}, 8, num_intermediate=1, weight=0.5)
    CTCIntermediate(6, block_dims(6) | {"blocks.0": 12}, 8, num_intermediate=1, weight=0.5)


BELOW = {  # power of layer_decay in the learning rate
    "encoder.stacks.0.linear.": 5,
    "encoder.stacks.0.blocks.0.": 4,
    "encoder.stacks.0.blocks.1.": 3,
    "encoder.stacks.1.linear.": 2,
    "encoder.stacks.1.blocks.0.": 2,
    "encoder.stacks.1.blocks.1.": 1,
    "head.": 0,
}


def test_layer_decay_follows_the_order_of_the_blocks() -> None:
    model, config = make_model(), resolved("optimizer=adamw", "optimizer.lr=1.0", "optimizer.layer_decay=0.5")
    optimizer = build_optimizer(config, model, model.depths)
    rates = {id(weight): group["lr"] for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in model.named_parameters():
        [below] = [power for begin, power in BELOW.items() if name.startswith(begin)]
        assert rates[id(weight)] == 0.5**below, name


def test_gradient_checkpointing_recomputes_the_blocks_and_changes_no_bit() -> None:
    results, calls = [], []
    for recompute in (False, True):
        model = make_model(dropout=0.1).train()
        if recompute:
            recompute_blocks(model.encoder)
            model = copy.deepcopy(model)  # as a moving average copies it
        for name, block in model.encoder.named_blocks():
            layer = block.module.get_submodule("convolution")
            layer.register_forward_hook(lambda *_, name=name, recompute=recompute: calls.append((recompute, name)))
        torch.manual_seed(2)
        losses = losses_of(model)
        losses["loss"].sum().backward()
        results.append([*losses.values(), *(weight.grad for weight in model.parameters())])
    assert all(map(torch.equal, *results))
    assert [calls.count((recompute, name)) for recompute in (False, True) for name in NAMES] == [1] * 4 + [2] * 4


def use_and_keep_parts(folder: Path) -> None:
    """Find the encoder, and write the names of the modules that FSDP shards."""
    use(folder)
    divide = TrainingTask.configure_gradient_clipping

    def divide_and_keep(self: TrainingTask, *arguments: Any, **named: Any) -> None:
        divide(self, *arguments, **named)
        parts = [name for name, module in self.named_modules() if isinstance(module, FSDPModule)]
        (folder / "parts.txt").write_text("\n".join(parts))

    TrainingTask.configure_gradient_clipping = divide_and_keep  # type: ignore[method-assign]


def test_on_two_processes_fsdp_shards_each_block_and_has_the_same_losses_as_ddp(lab: Path, tones: Path) -> None:
    chosen = ["trainer.max_epochs=1", "data.batch_seconds=4", "trainer.accelerator=cpu", "optimizer.layer_decay=0.8"]
    chosen += ["augment=[]", "trainer.log_every_n_steps=1", "gradient_checkpointing=true", "trainer.devices=2"]
    runs = {}
    for name in ("ddp", "fsdp"):
        config = resolved(*tone_corpus(tones), *SHORT, *chosen, f"trainer.strategy={name}")
        config |= {"encoder": SETTINGS | {"dim": 16, "dropout": 0.1}, "plugins": [LAB]}
        runs[name] = trained(lab, name, config, partial(use_and_keep_parts if name == "fsdp" else use, lab))
    assert_equal_training(runs["fsdp"], runs["ddp"])
    assert (lab / "parts.txt").read_text().split("\n") == ["", *(f"model.encoder.{name}" for name in NAMES)]
