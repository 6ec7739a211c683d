"""The padding rule: an utterance has the same output alone and in any batch, whatever the padding contains.

This is tested for every encoder in conf/, and for the smallest encoder of each class with each alternative part. In
training without dropout, gradients follow the rule, too.
"""

import math
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asr.build import component
from asr.data.batch import Example, collate
from asr.data.manifest import Utterance
from tests.conftest import ENCODERS, OTHER_PARTS, SMALLEST_ENCODERS, overridden, resolved
from tests.targets import targets_of

NUM_MEL_BINS, VOCAB_SIZE = 20, 7
LENGTHS = [41, 64, 17, 1, 30]  # frames; with stride 4: 11, 16, 5, 1, 8, and with 8: 6, 8, 3, 1, 4
TOKENS = [[1, 1, 2, 3], [6, 5, 4, 3, 2, 1], [2, 2], [], [3]]
SHALLOW = {"num_layers": 2, "dropout": 0.0}  # the width is that of conf/, for realistic rounding errors
NARROW = {**SHALLOW, "dim": 16, "feed_forward_factor": 2}  # for tests of gradients, which are slower
FEW_CHANNELS = {"num_channels": 4, "dropout": 0.0}
NEAR = {"context": 3}  # frames; most utterances are several times as long
SEGMENTS = {"segment": 4, "training_memory": 3, "memory": 5}
CHUNKS = {"chunk_frames": 3, "left_frames": 4, "right_frames": 2}
SIZES = SEGMENTS | CHUNKS | {f"training_{name}": [frames] for name, frames in CHUNKS.items()}
JUNK = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30])
# Relative to the largest compared number, if it is above 1. Rounding errors are 6e-8 and 1e-16.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


Case = tuple[str, ...]  # overrides


@cache
def encoder_config(case: Case) -> dict[str, Any]:
    return resolved(*case)["encoder"]


ALL = [*((f"encoder={name}",) for name in ENCODERS), *(tuple(part.overrides) for part in OTHER_PARTS)]
LARGER = [(f"encoder={name}",) for name in ENCODERS if name not in SMALLEST_ENCODERS]
OF_THE_BATCH = {"masked_batch_norm", "switchable_norm"}  # norms with statistics over the whole batch


def cases(wanted: list[Case]) -> Any:
    """Parametrise a test; larger encoders that differ only in sizes, and other parts in float64, are slow."""
    marked = [
        pytest.param(
            *(case, dtype),
            marks=[pytest.mark.slow] * (case in LARGER or (len(case) > 1 and dtype == torch.float64)),
            id=f"{' '.join(case)}-{str(dtype).removeprefix('torch.')}",
        )
        for dtype in TOLERANCES
        for case in wanted
    ]
    return pytest.mark.parametrize(("case", "dtype"), marked)


CASES = cases(ALL)
IN_FLOAT64 = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in LARGER)) for case in ALL], ids=" ".join
)


def norm(case: Case) -> str | None:
    """Return the name of the norm, without composing the config, which takes long for so many cases."""
    groups = {
        group: name
        for entry in ENCODERS[case[0].partition("=")[2]].get("defaults", [])
        if entry != "_self_"
        for group, name in entry.items()
    }
    chosen = dict(override.removeprefix("encoder/").split("=") for override in case)
    return (groups | chosen).get("norm")


OWN_STATISTICS = cases([case for case in ALL if norm(case) not in OF_THE_BATCH])


class Net(nn.Module):
    """An encoder and a head."""

    def __init__(self, encoder: Any, head: Any) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.encoder(features, lengths, self.head.taps)
        return self.head.log_probs(encoded.out), encoded.lengths

    def losses(self, features: Tensor, lengths: Tensor, tokens: list[list[int]]) -> Tensor:
        padded = nn.utils.rnn.pad_sequence(
            [torch.tensor(sequence, dtype=torch.int64) for sequence in tokens], batch_first=True
        )
        encoded = self.encoder(features, lengths, self.head.taps)
        return self.head.losses(encoded, targets_of(padded, torch.tensor([len(sequence) for sequence in tokens])))[
            "loss"
        ]


def make_net(case: Case, dtype: torch.dtype, size: dict[str, Any]) -> Net:
    """Make a small net whose parameters and running statistics all differ from their initial values."""
    torch.manual_seed(0)
    config = overridden(encoder_config(case), size | SIZES | {"subsampling": FEW_CHANNELS, "attention": NEAR})
    encoder = component("encoder", config)(NUM_MEL_BINS)
    head = component("head", {"name": "ctc"})(encoder.output_dim, len(encoder.blocks), VOCAB_SIZE)
    net = Net(encoder, head).to(dtype)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        net(torch.randn(4, 50, NUM_MEL_BINS, dtype=dtype), torch.full((4,), 50))
    return net


def utterances(dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(length, NUM_MEL_BINS, dtype=dtype) for length in LENGTHS]


def padded(features: list[Tensor], more: int, first_junk: int = 0) -> tuple[Tensor, Tensor]:
    """Make a batch `more` frames longer than its longest utterance, with junk as padding."""
    lengths = [len(utterance) for utterance in features]
    shape = (len(features), max(lengths) + more, NUM_MEL_BINS)
    junk = JUNK.roll(first_junk).repeat(math.ceil(math.prod(shape) / len(JUNK)))[: math.prod(shape)]
    batch = junk.view(shape).to(features[0].dtype)
    for row, utterance in zip(batch, features, strict=True):
        row[: len(utterance)] = utterance
    return batch, torch.tensor(lengths)


def assert_same(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    """Compare all tensors with the same absolute tolerance: a relative one is too strict where gradients cancel."""
    actual, expected = [tensor.detach() for tensor in actual], [tensor.detach() for tensor in expected]
    largest = max(tensor.abs().max().item() for tensor in expected)
    tolerance = TOLERANCES[expected[0].dtype] * max(1.0, largest)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


@CASES
@torch.no_grad()
def test_an_utterance_has_equal_log_probs_alone_and_in_a_batch(case: Case, dtype: torch.dtype) -> None:
    net, features = make_net(case, dtype, SHALLOW).eval(), utterances(dtype)
    log_probs, lengths = net(*padded(features, more=11))
    for number, utterance in enumerate(features):
        alone, length_alone = net(utterance[None], torch.tensor([len(utterance)]))
        assert lengths[number] == length_alone[0] == alone.shape[1] == net.encoder.output_lengths(len(utterance))
        assert (log_probs[number, : lengths[number]] - alone[0]).abs().max() <= TOLERANCES[dtype]


@CASES
def test_training_depends_neither_on_the_amount_of_padding_nor_on_its_content(case: Case, dtype: torch.dtype) -> None:
    features = utterances(dtype)
    nets, losses = [], []
    for more, first_junk in ((0, 0), (14, 2)):
        nets.append(make_net(case, dtype, NARROW).train())
        losses.append(nets[-1].losses(*padded(features, more, first_junk), TOKENS))
        losses[-1].sum().backward()
    assert_same([losses[1]], [losses[0]])
    assert_same(*([parameter.grad for parameter in net.parameters()] for net in reversed(nets)))
    assert_same(nets[1].state_dict().values(), nets[0].state_dict().values())  # running statistics


@OWN_STATISTICS
def test_without_batch_statistics_the_gradients_of_an_utterance_are_equal_alone_and_in_a_batch(
    case: Case, dtype: torch.dtype
) -> None:
    net, features = make_net(case, dtype, NARROW).train(), utterances(dtype)
    parameters = list(net.parameters())
    losses = net.losses(*padded(features, more=6), TOKENS)
    for number, utterance in enumerate(features):
        share = torch.autograd.grad(losses[number], parameters, retain_graph=True)
        loss_alone = net.losses(utterance[None], torch.tensor([len(utterance)]), [TOKENS[number]])
        alone = torch.autograd.grad(loss_alone[0], parameters)
        assert_same([losses[number]], loss_alone)
        assert_same(share, alone)


@IN_FLOAT64
@torch.no_grad()
def test_the_padding_rule_holds_for_batches_made_by_collate(case: Case) -> None:
    net = make_net(case, torch.float64, NARROW).eval()
    examples = [
        Example(Utterance("a.wav", 1.0, "", str(number)), features, torch.tensor(tokens, dtype=torch.int64))
        for number, (features, tokens) in enumerate(zip(utterances(torch.float64), TOKENS, strict=True))
    ]

    def losses_of(chosen: list[Example]) -> Tensor:
        batch = collate(chosen)
        encoded = net.encoder(batch.features, batch.feature_lengths, net.head.taps)
        return net.head.losses(encoded, batch.targets)["loss"]

    assert_same(losses_of(examples), [losses_of([example])[0] for example in examples])


@IN_FLOAT64
def test_an_utterance_without_frames_does_not_affect_the_others(case: Case) -> None:
    net, features = make_net(case, torch.float64, NARROW), utterances(torch.float64)
    nothing = torch.zeros(0, NUM_MEL_BINS, dtype=torch.float64)
    for mode in (net.eval, net.train):
        mode()
        expected = net.losses(*padded(features, more=0), TOKENS)
        losses = net.losses(*padded([nothing, *features], more=0), [[], *TOKENS])
        assert_same(losses[1:], expected)
        net.zero_grad()
        losses[1:].sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in net.parameters())
