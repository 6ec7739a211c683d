"""What every head and every encoder must do besides the padding rule: gradients, losses by name, taps, decoders."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from asr.apps.check.decoders import with_rare_blanks
from asr.apps.check.network import overridden
from asr.base.settings.conf import default_settings
from asr.components.head.ctc_intermediate import unchanged
from asr.core.build import build_decoder, check_needs, component, decoders_of
from asr.core.recognition.model import Model
from asr.errors import InputError
from asr.interfaces import BLANK_ID, Decoder, Encoded, Head, Tap

FRAMES = (90, 61)  # with stride 8, enough for TOKENS
TOKENS, TOKEN_LENGTHS = torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([3, 2])
SHARPER = 3.0  # factor of weights


def check_gradients(model: Model) -> None:
    """Check the names and shapes of the losses of a model, and that each of its weights has a gradient."""
    head = model.head
    lengths = torch.tensor(FRAMES) * -(-model.encoder.stride // 8)
    features = torch.randn(2 * head.views, int(lengths.max()), model.features.dim)
    encoded: Encoded = model(features.to(next(model.parameters()).dtype), lengths.repeat(head.views))
    losses = head.losses(encoded, {"tokens": TOKENS, "token_lengths": TOKEN_LENGTHS})
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


@torch.no_grad()
def check_restriction(settings: Mapping[str, Any], model: Model) -> None:
    """Check that decoders of a restricted head write only allowed tokens, and that losses and taps do not change."""
    head, restrict = model.head, model.head.restrict
    if restrict is None:  # `--characters` is then refused
        return
    with_rare_blanks(model)
    for weight in head.parameters():  # type: ignore[attr-defined]
        weight.mul_(SHARPER)  # so that frames have different tokens
    named = decoders_of(settings)
    decoders = [_decoder(name, settings, model) for name in (*named.greedy, *named.beam)]
    lengths = torch.tensor(FRAMES) * -(-model.encoder.stride // 8)
    features = torch.randn(2, int(lengths.max()), model.features.dim)

    def outputs() -> dict[str, Tensor]:
        torch.manual_seed(0)  # a loss may draw numbers
        encoded: Encoded = model(features, lengths)
        return {"out": encoded.out, **head.losses(encoded, {"tokens": TOKENS, "token_lengths": TOKEN_LENGTHS})}

    before, encoded = outputs(), model(features, lengths)
    tokens = torch.arange(model.tokenizer.vocab_size)
    for half in range(2):  # each token is masked once
        allowed = (tokens % 2 == half) | (tokens == BLANK_ID)
        restrict(allowed)
        for name, value in outputs().items():
            if not torch.allclose(value, before[name], rtol=0.0, atol=0.0, equal_nan=True):
                raise InputError(f"head.restrict must change only what searches read; it changes {name} of a training.")
        if head.frame_head is not None:
            _check_distribution(head.frame_head.log_probs(encoded.out), allowed)
        for decoder in decoders:
            if written := _written(decoder, encoded) - {*tokens[allowed].tolist()}:
                must = "after head.restrict(allowed), a decoder must write only allowed tokens"
                raise InputError(f"{must}; {type(decoder).__name__} wrote {', '.join(map(str, sorted(written)))}.")
    restrict(torch.ones_like(allowed))


def _decoder(name: str, settings: Mapping[str, Any], model: Model) -> Decoder:
    decode = overridden(default_settings("decode", name), {"beam_size": 4})
    return build_decoder({"decode": decode, "head": settings}, model)


def _written(decoder: Decoder, encoded: Encoded) -> set[int]:
    """Return the tokens of all hypotheses."""
    nbests = decoder.search(decoder.evidence(encoded))
    return {token for nbest in nbests for hypothesis in nbest for token in hypothesis.tokens}


def _check_distribution(log_probs: Tensor, allowed: Tensor) -> None:
    if (log_probs[..., ~allowed].exp() > 0).any():
        raise InputError("after head.restrict(allowed), log_probs must be -inf for all other tokens; they are not.")
    if not torch.allclose(log_probs.exp().sum(dim=-1), torch.ones(()), atol=1e-4):
        raise InputError("after head.restrict(allowed), the probabilities must add up to 1; they do not.")


def check_decoders(settings: Mapping[str, Any], head: Head) -> None:
    """Check that a head names decoders that exist, and that it has the parts that they need."""
    decoders = decoders_of(settings)
    for name in (*decoders.greedy, *decoders.beam):
        decode = default_settings("decode", name)
        check_needs(component("decode", decode), head, {"decode": decode, "head": settings})
