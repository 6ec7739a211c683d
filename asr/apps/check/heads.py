"""What every head and every encoder must do besides the padding rule: gradients, losses by name, taps, decoders."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asr.base.settings.conf import default_settings
from asr.components.head.ctc_intermediate import unchanged
from asr.core.build import check_needs, component, decoders_of
from asr.core.recognition.model import Model
from asr.errors import InputError
from asr.interfaces import Encoded, Head, Tap

FRAMES = (90, 61)  # with stride 8, enough for TOKENS
TOKENS = torch.tensor([[1, 2, 2], [3, 1, 0]])


def check_gradients(model: Model) -> None:
    """Check the names and shapes of the losses of a model, and that each of its weights has a gradient."""
    head = model.head
    lengths = torch.tensor(FRAMES) * -(-model.encoder.stride // 8)
    features = torch.randn(2 * head.views, int(lengths.max()), model.features.dim)
    encoded: Encoded = model(features.to(next(model.parameters()).dtype), lengths.repeat(head.views))
    losses = head.losses(encoded, {"tokens": TOKENS, "token_lengths": torch.tensor([3, 2])})
    if {*losses} != {"loss", *head.loss_names}:
        must = f"losses must return 'loss' and those in loss_names ({', '.join(head.loss_names) or 'none'})"
        raise InputError(f"{must}; got {', '.join(losses)}.")
    for name, loss in losses.items():
        if loss.shape != (2,) or not loss.isfinite().all():
            raise InputError(
                f"the loss {name!r} must have a finite value for each of 2 utterances; got {loss.tolist()}."
            )
    losses["loss"].sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    dead = [name for name, gradient in gradients.items() if gradient is None or not gradient.any()]
    if dead:
        raise InputError(f"the loss must depend on every weight; it does not depend on {', '.join(dead)}.")
    if broken := [name for name, gradient in gradients.items() if gradient is None or not gradient.isfinite().all()]:
        raise InputError(f"the gradient of every weight must be finite; that of {', '.join(broken)} is not.")
    if int(head.cells(10, 3)) <= 0:
        raise InputError(f"cells must be the size of the head's largest tensor; got {head.cells(10, 3)}.")


@torch.no_grad()
def check_blocks(model: Model) -> None:
    """Check the names, dimensions and strides of the blocks of an encoder."""
    encoder, named = model.encoder, model.encoder.named_blocks()
    modules = dict(model.named_modules())
    lengths = torch.tensor(FRAMES) * -(-encoder.stride // 8)
    features = torch.randn(2, int(lengths.max()), model.features.dim)
    encoded: Encoded = encoder(features, lengths, dict.fromkeys(range(len(named)), unchanged))
    for index, (name, block) in enumerate(named):
        if modules.get(f"encoder.{name}") is not block.module:
            raise InputError(f"named_blocks must give each block its name in the state dict; got {name!r}.")
        if index not in encoded.blocks:
            raise InputError(f"Encoded.blocks must have the output of tapped block {index}, {name}; it does not.")
        out = encoded.blocks[index]
        if out.out.shape[2] != block.dim:
            raise InputError(f"Block.dim of {name} must be that of its output, {out.out.shape[2]}; got {block.dim}.")
        covered, of_encoder = out.lengths * block.stride, encoded.lengths * encoder.stride  # in feature frames
        if ((covered - of_encoder).abs() >= max(block.stride, encoder.stride)).any():
            must = f"Block.stride of {name} must be the number of feature frames per output frame"
            given = f"{block.stride} and {out.lengths.tolist()} frames for {lengths.tolist()} feature frames"
            raise InputError(f"{must}; got {given}.")


@torch.no_grad()
def check_taps(model: Model) -> None:
    """Check that a tap observes the output of a block, and changes the input of the next block."""
    lengths = torch.tensor(FRAMES) * -(-model.encoder.stride // 8)
    features = torch.randn(2, int(lengths.max()), model.features.dim)

    def cosine(x: Tensor, padding_mask: Tensor) -> Tensor:
        return x.masked_fill(padding_mask[:, :, None], 0.0).cos()

    def encode(taps: Mapping[int, Tap]) -> Encoded:
        encoded: Encoded = model.encoder(features, lengths, taps)
        return encoded

    plain = encode({})
    for index in range(len(model.encoder.named_blocks()) - 1):
        observed, changed = encode({index: unchanged}), encode({index: cosine})
        if plain.blocks or [*observed.blocks] != [index] or [*changed.blocks] != [index]:
            raise InputError("Encoded.blocks must have the outputs of the tapped blocks, and no others.")
        if not torch.allclose(plain.out, observed.out) or torch.allclose(plain.out[0], changed.out[0]):
            raise InputError("the result of a tap must be the input of the next block; it is not.")
        if not torch.allclose(changed.blocks[index].out, observed.blocks[index].out):
            raise InputError("Encoded.blocks must have the output of a block before the tap; it is after the tap.")


def check_decoders(settings: Mapping[str, Any], head: Head) -> None:
    """Check that a head names decoders that exist, and that it has the parts that they need."""
    decoders = decoders_of(settings)
    for name in (*decoders.greedy, *decoders.beam):
        decode = default_settings("decode", name)
        check_needs(component("decode", decode), head, {"decode": decode, "head": settings})
