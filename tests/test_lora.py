"""LoRA: an adapted net starts with the outputs of its base, trains only adapters, and can be merged into its base."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.base.kernels.dropout import Dropout
from asr.core.build import build_optimizer, component
from asr.core.recognition.model import Model
from asr.core.training.gradient_checkpointing import recompute_blocks
from asr.errors import InputError
from asr.interfaces import Encoded
from tests.conftest import CONF, SMALLEST_ENCODERS, block_dims, overridden, resolved
from tests.refusals import refused
from tests.targets import targets_of
from tests.test_heads import DIM, VOCAB_SIZE
from tests.test_heads import SMALL as SMALL_HEADS
from tests.test_recompute import SMALL, batch

NUM_MEL_BINS = 20
TOKENS = ([1, 2, 2], [3], [4, 1])
HEADS = sorted(path.stem for path in (CONF / "head").glob("*.yaml"))
LORA = resolved("adapter=lora")["adapter"] | {"rank": 3, "alpha": 6}


class Net(nn.Module):
    """An encoder without dropout, with fixed random weights."""

    def __init__(self, *overrides: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        config = resolved(*overrides)
        encoder = overridden(config["encoder"], SMALL | {"segment": 5, "training_chunk_frames": [4]})
        self.encoder = component("encoder", encoder)(NUM_MEL_BINS).double()
        for module in self.modules():
            if isinstance(module, Dropout):
                module.p = 0.0

    depths = Model.depths  # the property

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        out: Tensor = self.encoder(features, lengths).out
        return out


def insert(net: nn.Module, **settings: Any) -> Any:
    """Insert adapters into a net, by default into every linear layer that can have one; return the component."""
    adapter = component("adapter", LORA | settings)()
    adapter.insert(net)
    return adapter


def stir(net: nn.Module) -> None:
    """Change the matrices B of the adapters, which start at zero, to random numbers."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith(".lora_b"):
                parameter += 0.1 * torch.randn_like(parameter)


def own(net: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}


def blocks_of(encoder: str) -> list[str]:
    """List the linear layers of the encoder's blocks, except layers whose weights other code reads."""
    net = Net(f"encoder={encoder}")
    return [
        name
        for name, module in net.named_modules()
        if type(module) is nn.Linear and "blocks." in name and not (encoder == "transformer_xl" and "qkv" in name)
    ]


ADAPTABLE = [name for name in SMALLEST_ENCODERS if blocks_of(name)]


def test_an_adapter_adds_the_papers_term_to_the_output_of_a_layer() -> None:
    net = nn.Sequential(nn.Linear(5, 7))
    weight, bias, x = net[0].weight.clone(), net[0].bias.clone(), torch.randn(4, 2, 5)
    insert(net, modules=["0"], rank=2, alpha=3)
    stir(net)
    a, b = net[0].lora_a, net[0].lora_b
    for row, frames in zip(net(x).flatten(0, 1), x.flatten(0, 1), strict=True):
        torch.testing.assert_close(row, weight @ frames + bias + 3 / 2 * (b @ (a @ frames)))


@pytest.mark.parametrize("encoder", ADAPTABLE)
def test_an_adapted_encoder_starts_with_the_outputs_of_its_base_and_only_adapters_learn(encoder: str) -> None:
    base, net = Net(f"encoder={encoder}"), Net(f"encoder={encoder}")
    modules = blocks_of(encoder)
    insert(net, modules=modules)
    with torch.no_grad():  # with gradients, the frozen weights of `net` could select other kernels
        assert torch.equal(net(*batch()), base(*batch())), "the matrix B starts at zero"
    assert list(own(net)) == [name for name, _ in net.named_parameters() if "lora" in name]
    net(*batch()).square().sum().backward()
    learning = {name for name, parameter in net.named_parameters() if parameter.grad is not None}
    assert learning == own(net).keys() == {f"{name}.lora_{factor}" for name in modules for factor in "ab"}
    assert all(net.get_parameter(f"{name}.lora_b").grad.any() for name in modules)


@pytest.mark.parametrize("encoder", ADAPTABLE)
def test_merged_weights_give_the_outputs_of_the_adapted_net(encoder: str) -> None:
    """This proves that adapters cover every use of a layer: in float64 the outputs differ only by rounding."""
    net, base = Net(f"encoder={encoder}").eval(), Net(f"encoder={encoder}").eval()
    adapter = insert(net, modules=blocks_of(encoder))
    stir(net)
    before = base(*batch())
    base.load_state_dict(adapter.merged(base.state_dict(), own(net)))
    torch.testing.assert_close(base(*batch()), net(*batch()), rtol=0, atol=1e-12)
    assert (base(*batch()) - before).abs().max() > 1e-3
    stored = {name: tensor.float() for name, tensor in base.state_dict().items()}
    merged = adapter.merged(stored, own(net))
    assert {tensor.dtype for name, tensor in merged.items() if name.endswith("weight")} == {torch.float32}


@pytest.mark.parametrize("head", HEADS)
def test_merged_heads_have_the_same_losses_as_adapted_heads(head: str) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        config = resolved(f"head={head}", *SMALL_HEADS)["head"]
        return component("head", config)(DIM, block_dims(DIM), VOCAB_SIZE).double().eval()

    def loss(head: Any) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        views = head.views * len(TOKENS)
        frames = torch.randn(views, 9, DIM, generator=generator, dtype=torch.float64)
        lengths = torch.tensor([9, 7, 8] * head.views)
        blocks = {index: Encoded(frames + index, lengths, {}) for index in range(4)}
        targets = torch.tensor([[*ids, *[1] * (3 - len(ids))] for ids in TOKENS])
        losses: dict[str, Tensor] = head.losses(
            Encoded(frames, lengths, blocks), targets_of(targets, torch.tensor([3, 1, 2]))
        )
        return losses["loss"].detach()

    adapted, merged = make(), make()
    adapter = insert(adapted, modules=["*"])
    before = loss(merged)
    torch.testing.assert_close(loss(adapted), before, rtol=0, atol=0)
    stir(adapted)
    merged.load_state_dict(adapter.merged(merged.state_dict(), own(adapted)))
    torch.testing.assert_close(loss(merged), loss(adapted), rtol=0, atol=1e-10)
    assert not torch.allclose(loss(merged), before)


def test_merged_weights_equal_those_of_peft() -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed: pip install -e '.[test-all]'")
    theirs = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)).double()
    base = {name: weight.clone() for name, weight in theirs.state_dict().items()}
    config = peft.LoraConfig(r=3, lora_alpha=12, target_modules=["0", "2"], init_lora_weights=False)
    model = peft.get_peft_model(theirs, config)
    named = {"lora_A.default.weight": "lora_a", "lora_B.default.weight": "lora_b"}
    weights = {
        name.removeprefix("base_model.model.").replace(end, ours): parameter.detach().clone()
        for name, parameter in model.named_parameters()
        for end, ours in named.items()
        if name.endswith(end)
    }
    assert len(weights) == 4
    adapter = component("adapter", LORA | {"rank": 3, "alpha": 12, "modules": ["0", "2"]})()
    x = torch.randn(5, 6, dtype=torch.float64)
    outputs = model(x)
    expected = model.merge_and_unload().state_dict()
    ours = adapter.merged(base, weights)
    assert ours.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-12)
    plain = nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4)).double()
    plain.load_state_dict(ours)
    torch.testing.assert_close(plain(x), outputs, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layer", "out"), [("attention.qkv", 3), ("convolution.pointwise1", 2)])
def test_the_number_of_trained_parameters_is_the_rank_times_the_sum_of_all_layer_dimensions(
    layer: str, out: int
) -> None:
    net = Net("encoder=conformer_s")
    insert(net, rank=5, modules=[f"encoder.blocks.*.{layer}"])
    dim, num_blocks = 16, 3
    assert sum(parameter.numel() for parameter in own(net).values()) == num_blocks * 5 * (dim + out * dim)


def test_adapters_have_the_learning_rate_of_their_block() -> None:
    net = Net("encoder=conformer_s")
    insert(net, modules=["encoder.blocks.*.attention.qkv"])
    config = resolved("optimizer.lr=1.0", "optimizer.layer_decay=0.5")
    optimizer = build_optimizer(config, net, net.depths)
    rates = {id(parameter): group["lr"] for group in optimizer.param_groups for parameter in group["params"]}
    assert {name: rates[id(parameter)] for name, parameter in own(net).items()} == {
        f"encoder.blocks.{block}.attention.qkv.lora_{factor}": 0.5 ** (3 - block)
        for block in range(3)
        for factor in "ab"
    }


def gradients(recompute: bool) -> dict[str, Tensor]:
    net = Net("encoder=conformer_s", "encoder/block/norm=layer_norm")
    insert(net, dropout=0.3)
    stir(net)
    if recompute:
        recompute_blocks(net.encoder)
    torch.manual_seed(1)
    net.train()(*batch()).square().sum().backward()
    return {name: parameter.grad for name, parameter in own(net).items()}


def test_gradient_checkpointing_gives_equal_gradients_even_with_dropout() -> None:
    expected, actual = gradients(recompute=False), gradients(recompute=True)
    assert all(torch.equal(gradient, expected[name]) for name, gradient in actual.items())


def test_dropout_applies_to_the_input_of_the_adapter_and_only_in_training() -> None:
    net = nn.Sequential(nn.Linear(5, 7))
    insert(net, modules=["0"], dropout=0.9)
    stir(net)
    x = torch.randn(400, 5)
    plain = nn.functional.linear(x, net[0].weight, net[0].bias)
    update = net.eval()(x) - plain
    dropped = net.train()(x) - plain
    assert not torch.allclose(dropped, update)
    assert (dropped.abs().sum(dim=1) < 1e-6).float().mean() == pytest.approx(0.9**5, abs=0.1), (
        "the update is 0 where dropout removes all five inputs"
    )


@pytest.mark.slow
def test_a_compiled_block_gives_equal_gradients() -> None:
    net = Net("encoder=conformer_s", "encoder/block/norm=layer_norm")
    insert(net)
    stir(net)
    net(*batch()).square().sum().backward()
    plain = {name: parameter.grad.clone() for name, parameter in own(net).items()}
    net.zero_grad()
    program = torch.compile(type(net.encoder.blocks[0]).forward, backend="aot_eager", dynamic=True)
    for block in net.encoder.blocks:
        block.forward = lambda *inputs, block=block: program(block, *inputs)
    net(*batch()).square().sum().backward()
    for name, parameter in own(net).items():
        torch.testing.assert_close(parameter.grad, plain[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"modules": ["decoder.*"]}, "adapter.modules; got 'decoder.*'"),
        ({"modules": ["encoder.blocks.*.depthwise"]}, "adapter.modules ... linear layers"),
        ({"trained": ["nothing.*"]}, "adapter.trained; got 'nothing.*'"),
        ({"modules": ["encoder.subsampling.linear"]}, "code reads ... encoder.subsampling.linear"),
        ({"modules": []}, "adapter.modules; got []"),
        ({"rank": 0}, "adapter.rank ... whole number"),
        ({"alpha": 0}, "adapter.alpha ... number greater"),
        ({"dropout": 1}, "adapter.dropout ... be a number"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(settings: dict[str, Any], message: str) -> None:
    with refused(InputError, message):
        insert(Net("encoder=conformer_s"), **settings)


def test_a_layer_whose_weights_other_code_reads_is_refused() -> None:
    with refused(InputError, "code reads ... encoder.blocks.0.attention.qkv"):
        insert(Net("encoder=transformer_xl"), modules=["encoder.blocks.*"])


@pytest.mark.parametrize(
    "harm",
    [
        lambda weights: weights.pop("0.lora_a"),
        lambda weights: weights.pop("0.lora_b"),
        lambda weights: weights.update({"0.lora_a": torch.zeros(4, 5)}),
        lambda weights: weights.update({"0.lora_b": torch.zeros(7)}),
        lambda weights: weights.update({"0.lora_b": torch.zeros(8, 3)}),
        lambda weights: weights.update({"1.lora_a": torch.zeros(3, 5), "1.lora_b": torch.zeros(7, 3)}),
    ],
    ids=["no A", "no B", "other rank", "a vector", "other layer's shape", "no such layer"],
)
def test_an_adapter_that_does_not_fit_the_net_is_reported_in_one_line(harm: Any) -> None:
    net = nn.Sequential(nn.Linear(5, 7))
    base = {name: weight.clone() for name, weight in net.state_dict().items()}
    adapter = insert(net, modules=["0"])
    weights = {name: weight.detach() for name, weight in own(net).items()}
    harm(weights)
    with refused(InputError, "of rank ... 3"):
        adapter.merged(base, weights)
