"""The padding rule: an utterance has the same output alone and in any batch, whatever the padding contains."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from asr.apps.check.network import LETTERS, NUM_MEL_BINS
from asr.components.head.ctc_intermediate import unchanged
from asr.core.recognition.model import Model
from asr.errors import InputError

LENGTHS = (41, 64, 17, 1, 30)  # frames; with stride 4: 11, 16, 5, 1, 8, and with 8: 6, 8, 3, 1, 4
TOKENS: Sequence[list[int]] = ([1, 1, 2, 3], [6, 5, 4, 3, 2, 1], [2, 2], [], [3])
JUNK = torch.tensor([math.nan, math.inf, -math.inf, 1e30, -1e30])
# Relative to the largest compared number, if it is above 1. Rounding errors are 6e-8 and 1e-16.
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}


def utterances(model: Model) -> list[Tensor]:
    """Return the same random utterances at each call; they are longer than LENGTHS if TOKENS need more frames."""
    generator = torch.Generator().manual_seed(0)
    dtype, needed = next(model.parameters()).dtype, [model.head.min_frames(tokens) for tokens in TOKENS]

    def fits(longer: int) -> bool:
        frames = [model.encoder.output_lengths(longer * length) for length in LENGTHS]
        return all(given >= least for given, least in zip(frames, needed, strict=True))

    longer = next(filter(fits, range(1, model.encoder.stride + 1)), 1)
    return [torch.randn(longer * length, NUM_MEL_BINS, dtype=dtype, generator=generator) for length in LENGTHS]


def padded(features: Sequence[Tensor], more: int, first_junk: int = 0) -> tuple[Tensor, Tensor]:
    """Make a batch `more` frames longer than its longest utterance, with junk as padding."""
    lengths = [len(utterance) for utterance in features]
    shape = (len(features), max(lengths) + more, NUM_MEL_BINS)
    junk = JUNK.roll(first_junk).repeat(math.ceil(math.prod(shape) / len(JUNK)))[: math.prod(shape)]
    batch = junk.view(shape).to(features[0].dtype)
    for row, utterance in zip(batch, features, strict=True):
        row[: len(utterance)] = utterance
    return batch, torch.tensor(lengths)


def losses_of(model: Model, batch: tuple[Tensor, Tensor], tokens: Sequence[list[int]]) -> Mapping[str, Tensor]:
    """Compute the losses of a padded batch; the padding of the tokens is the last letter."""
    targets = torch.full((len(tokens), max(map(len, tokens)) + 2), len(LETTERS))
    for row, ids in zip(targets, tokens, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    token_lengths = torch.tensor([len(ids) for ids in tokens])
    return model.head.losses(model(*batch), {"tokens": targets, "token_lengths": token_lengths})


def check_same(actual: Iterable[Tensor], expected: Iterable[Tensor], must: str) -> None:
    """Compare all tensors with the same absolute tolerance: a relative one is too strict where gradients cancel."""
    pairs = [(one.detach(), other.detach()) for one, other in zip(actual, expected, strict=True) if one.numel()]
    largest = max(other.abs().max().item() for _, other in pairs)
    dtype = next(other.dtype for _, other in pairs if other.is_floating_point())
    tolerance = TOLERANCES[dtype] * max(1.0, largest)
    differences = [float((one - other).abs().max()) if one.shape == other.shape else math.inf for one, other in pairs]
    worst = max(differences, key=lambda difference: math.inf if math.isnan(difference) else difference)
    if not worst <= tolerance:
        raise InputError(f"{must}; the difference is {worst:.2g}. Mask the padding with masked_fill.")


@torch.no_grad()
def check_outputs(model: Model) -> None:
    """Check the log_probs and block outputs of utterances alone and in a batch, and the numbers of their frames."""
    features, encoder, frame_head = utterances(model), model.encoder, model.head.frame_head
    assert frame_head is not None, "the model has a CTC head"
    taps = dict.fromkeys(range(len(encoder.named_blocks())), unchanged)
    encoded = encoder(*padded(features, more=11), taps)
    log_probs = frame_head.log_probs(encoded.out)
    for row, utterance in enumerate(features):
        alone = encoder(utterance[None], torch.tensor([len(utterance)]), taps)
        numbers = encoder.output_lengths(len(utterance)), *map(int, (alone.lengths[0], encoded.lengths[row]))
        if {*numbers} == {0}:  # it is shorter than an encoder frame
            continue
        if {*numbers, alone.out.shape[1]} != {numbers[0]}:
            must = "output_lengths, Encoded.lengths and the number of frames of Encoded.out must be equal"
            given = f"{numbers[0]}, {numbers[1]} (in a batch {numbers[2]}) and {alone.out.shape[1]}"
            raise InputError(f"{must}; got {given} for {len(utterance)} feature frames.")
        must = "an utterance must have the same output alone and in a batch"
        check_same([log_probs[row : row + 1, : numbers[0]]], [frame_head.log_probs(alone.out)], must)
        for index, block in alone.blocks.items():
            in_batch, length = encoded.blocks[index], int(block.lengths[0])
            must = f"an utterance must have the same output of block {index} alone and in a batch"
            check_same([in_batch.lengths[row], in_batch.out[row, :length]], [block.lengths[0], block.out[0]], must)


def check_training(make: Callable[[], Model]) -> None:
    """Check that training depends neither on the amount of padding nor on its content.

    Args:
        make: makes the same model at each call, in training mode, without dropout.
    """
    models = [make(), make()]
    features, losses = utterances(models[0]), []
    for model, (more, first_junk) in zip(models, ((0, 0), (14, 2)), strict=True):
        torch.manual_seed(0)  # for choices in training, such as the size of chunks
        losses.append(losses_of(model, padded(features, more, first_junk), TOKENS)["loss"])
        losses[-1].sum().backward()
    must = "{} in training must not depend on the amount and content of padding"
    check_same([losses[1]], [losses[0]], must.format("a loss"))
    first, second = models
    check_same(_gradients(second), _gradients(first), must.format("a gradient"))
    check_same(second.state_dict().values(), first.state_dict().values(), must.format("a running statistic"))


def _gradients(model: nn.Module) -> list[Tensor]:
    return [torch.zeros_like(weight) if weight.grad is None else weight.grad for weight in model.parameters()]


def check_losses(model: Model) -> None:
    """Check the losses and gradients of utterances alone and in a batch."""
    features, weights = utterances(model), list(model.parameters())
    losses = losses_of(model, padded(features, more=6), TOKENS)
    for row, (utterance, tokens) in enumerate(zip(features, TOKENS, strict=True)):
        alone = losses_of(model, (utterance[None], torch.tensor([len(utterance)])), [tokens])
        for name, loss in losses.items():
            check_same([loss[row : row + 1]], [alone[name]], f"the loss {name!r} must be the same alone and in a batch")
        share, expected = (
            torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True, materialize_grads=True)
            for loss in (losses["loss"][row], alone["loss"][0])
        )
        check_same(share, expected, "the gradients of an utterance must be the same alone and in a batch")
