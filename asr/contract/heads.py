"""What every head and every encoder must do besides the padding rule: gradients, losses by name, taps, decoders."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asr.build import check_needs, component, decoders_of
from asr.errors import InputError
from asr.interfaces import Encoded, Head, Tap
from asr.recognition.model import Model
from asr.settings.conf import default_settings

FRAMES = (90, 61)  # with stride 8, enough for TOKENS
TOKENS = torch.tensor([[1, 2, 2], [3, 1, 0]])


def check_gradients(model: Model) -> None:
    """Check the names and shapes of the losses of a model, and that each of its weights has a gradient.

    Raises:
        InputError: a loss is missing, unknown or not finite, or a weight has no gradient.
    """
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
def check_taps(model: Model) -> None:
    """Check that a tap observes the output of a block, and changes the input of the next block.

    Raises:
        InputError: the encoder ignores a tap, or returns a changed output.
    """
    features, lengths = torch.randn(2, FRAMES[0], model.features.dim), torch.tensor(FRAMES)

    def cosine(x: Tensor, padding_mask: Tensor) -> Tensor:
        return x.masked_fill(padding_mask[:, :, None], 0.0).cos()

    def encode(*tap: Tap) -> Encoded:
        encoded: Encoded = model.encoder(features, lengths, dict(enumerate(tap)))
        return encoded

    plain, observed, changed = encode(), encode(lambda x, padding_mask: x), encode(cosine)
    if plain.blocks or [*observed.blocks] != [0] or [*changed.blocks] != [0]:
        raise InputError("Encoded.blocks must have the outputs of the tapped blocks, and no others.")
    if not torch.allclose(plain.out, observed.out) or torch.allclose(plain.out[0], changed.out[0]):
        raise InputError("the result of a tap must be the input of the next block; it is not.")
    if not torch.allclose(changed.blocks[0].out, observed.blocks[0].out):
        raise InputError("Encoded.blocks must have the output of a block before the tap; it is after the tap.")


def check_decoders(settings: Mapping[str, Any], head: Head) -> None:
    """Check that a head names decoders that exist, and that it has the parts that they need.

    Raises:
        InputError: it does not.
    """
    decoders = decoders_of(settings)
    for name in (*decoders.greedy, *decoders.beam):
        decode = default_settings("decode", name)
        check_needs(component("decode", decode), head, {"decode": decode, "head": settings})
