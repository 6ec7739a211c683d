"""The padding rule: an utterance has the same output alone and in any batch, whatever the padding contains.

This is tested for every encoder in conf/, and for the smallest encoder of each class with each alternative part. In
training without dropout, gradients follow the rule, too. `asr.check` runs the same checks on a plugin.
"""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.apps.check.network import NUM_MEL_BINS, model_of, unlike_new
from asr.apps.check.padding import (
    TOKENS,
    TOLERANCES,
    check_losses,
    check_outputs,
    check_same,
    check_training,
    losses_of,
    padded,
    utterances,
)
from asr.base.settings.conf import default_settings
from asr.core.data.batch import Example, collate
from asr.core.data.manifest import Utterance
from asr.core.recognition.model import Model
from tests.conftest import ENCODERS, OTHER_PARTS, SMALLEST_ENCODERS, STACKS, overridden, resolved

# The width is that of conf/, for realistic rounding errors.
SHALLOW: dict[str, Any] = {
    "num_layers": 2,
    "layers": [1] * 6,
    "dropout": 0.0,
    "block": {"dropout": 0.0},
}
NARROW = {  # for gradients
    **SHALLOW,
    **STACKS,
    "dim": 16,
    "dims": [12, 24, 16],
    "block": {"dropout": 0.0, "num_heads": 4, "feed_forward_factor": 2},
}
FEW_CHANNELS = {"num_channels": 4, "channels": [4, 4, 4], "dropout": 0.0}
NEAR = {"context": 3, "left": 3, "right": 2}  # frames; most utterances are several times as long
SEGMENTS = {"segment": 4, "training_memory": 3, "memory": 5}
CHUNKS = {"chunk_frames": 4, "left_frames": 4, "right_frames": 2}
SIZES = SEGMENTS | CHUNKS | {f"training_{name}": [frames] for name, frames in CHUNKS.items()}


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
    settings = default_settings("encoder", case[0].partition("=")[2])
    chosen = dict(override.removeprefix("encoder/").split("=") for override in case)
    name: str | None = chosen.get("block/norm", settings.get("block", {}).get("norm", {}).get("name"))
    return name


OWN_STATISTICS = cases([case for case in ALL if norm(case) not in OF_THE_BATCH])


def make_model(case: Case, dtype: torch.dtype, size: dict[str, Any]) -> Model:
    """Make a small model whose parameters and running statistics all differ from their initial values."""
    torch.manual_seed(0)
    changes = size | SIZES | {"subsampling": FEW_CHANNELS, "block": size["block"] | {"attention": NEAR}}
    encoder = overridden(encoder_config(case), changes)
    return unlike_new(model_of(encoder, {"name": "ctc"}).to(dtype))


@CASES
def test_an_utterance_has_equal_log_probs_alone_and_in_a_batch(case: Case, dtype: torch.dtype) -> None:
    check_outputs(make_model(case, dtype, SHALLOW).eval())


@CASES
def test_training_depends_neither_on_the_amount_of_padding_nor_on_its_content(case: Case, dtype: torch.dtype) -> None:
    check_training(lambda: make_model(case, dtype, NARROW).train())


@OWN_STATISTICS
def test_without_batch_statistics_the_gradients_of_an_utterance_are_equal_alone_and_in_a_batch(
    case: Case, dtype: torch.dtype
) -> None:
    check_losses(make_model(case, dtype, NARROW).train())


@IN_FLOAT64
@torch.no_grad()
def test_the_padding_rule_holds_for_batches_made_by_collate(case: Case) -> None:
    model = make_model(case, torch.float64, NARROW).eval()
    examples = [
        Example(Utterance("a.wav", 1.0, "", str(number)), features, torch.tensor(tokens, dtype=torch.int64))
        for number, (features, tokens) in enumerate(zip(utterances(model), TOKENS, strict=True))
    ]

    def losses(chosen: list[Example]) -> Tensor:
        batch = collate(chosen)
        return model.head.losses(model.encode(batch), batch.targets)["loss"]

    check_same([losses(examples)], [torch.cat([losses([example]) for example in examples])], "losses")


@IN_FLOAT64
def test_an_utterance_without_frames_does_not_affect_the_others(case: Case) -> None:
    model = make_model(case, torch.float64, NARROW)
    features, nothing = utterances(model), torch.zeros(0, NUM_MEL_BINS, dtype=torch.float64)
    for mode in (model.eval, model.train):
        mode()
        expected = losses_of(model, padded(features, more=0), TOKENS)["loss"]
        losses = losses_of(model, padded([nothing, *features], more=0), [[], *TOKENS])["loss"]
        check_same([losses[1:]], [expected], "losses")
        model.zero_grad()
        losses[1:].sum().backward()
        assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
