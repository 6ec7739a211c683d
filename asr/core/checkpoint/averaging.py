"""Averages of weights: of checkpoints of a run, and of a trained model with the model from which its training began."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from asr.core.build import build_tokenizer
from asr.core.checkpoint.bundle import Bundle

JOINER_OUTPUT = "head.joiner.output."  # prefix of the names of the weights of a transducer's output layer


def average(weights: Sequence[Mapping[str, Tensor]], shares: Sequence[float]) -> dict[str, Tensor]:
    """Average, in float64, weights with the same name, weighted by `shares`; a single set is returned unchanged."""
    if len(weights) == 1:
        return dict(weights[0])
    pairs = list(zip(shares, weights, strict=True))
    return {
        name: torch.stack([share * each[name].double() for share, each in pairs])
        .sum(dim=0)
        .div(sum(shares))
        .to(first.dtype)
        for name, first in weights[0].items()
    }


def with_share_of(initial: Bundle, trained: Bundle, share: float) -> dict[str, Tensor]:
    """Return the weights of a trained model with a share of the model from which its training began.

    What the initial model does not have remains as it was trained: tensors of another name or shape, and the rows and
    columns of tokens that were added to the tokenizer. The statistics of norms are averaged like weights.

    *Source*: Wortsman et al. 2021, arXiv:2109.01903.

    Args:
        initial: the initial model.
        trained: the trained model, a whole model.
        share: share of the initial model in each weight, from 0 to 1.
    """
    if not share:
        return trained.weights
    old, new = token_names(initial), token_names(trained)
    ids = {name: number for number, name in enumerate(old)}
    pairs = [(number, ids[name]) for number, name in enumerate(new) if name in ids]
    results = dict(trained.weights)
    for name, weight in trained.weights.items():
        start = initial.weights.get(name)
        if start is None:
            continue
        axis = _token_axis(name, weight, start, (len(new), len(old))) if old != new else None
        if axis is not None:
            results[name] = _by_token(weight, start, share, axis, pairs, (len(new), len(old)))
        elif start.shape == weight.shape:
            results |= average([{name: weight}, {name: start}], [1 - share, share])
    return results


def token_names(bundle: Bundle) -> list[str]:
    """Return the names of a model's tokens, by id."""
    tokenizer = build_tokenizer(bundle.config)
    tokenizer.load(bundle.files)
    return list(tokenizer.names)


def _token_axis(name: str, trained: Tensor, initial: Tensor, sizes: tuple[int, int]) -> int | None:
    """Return the axis of a weight that has an entry for each token, 0 or 1; None: it has no such axis.

    Args:
        name: name of the weight.
        trained: weight of the trained model.
        initial: weight of the initial model.
        sizes: numbers of tokens of the trained and of the initial model.
    """
    for axis in range(min(2, trained.ndim, initial.ndim)) if name.startswith("head.") else ():
        rests = [weight.shape[axis] - size for weight, size in zip((trained, initial), sizes, strict=True)]
        others = [weight.shape[:axis] + weight.shape[axis + 1 :] for weight in (trained, initial)]
        # The rows of durations follow those of tokens.
        if others[0] == others[1] and (rests == [0, 0] or (name.startswith(JOINER_OUTPUT) and rests[0] == rests[1])):
            return axis
    return None


def _by_token(
    trained: Tensor, initial: Tensor, share: float, axis: int, pairs: Sequence[tuple[int, int]], sizes: tuple[int, int]
) -> Tensor:
    """Average the entries of the tokens that both models have, along an axis; `pairs` are the ids of each of them."""
    after = [(sizes[0] + number, sizes[1] + number) for number in range(trained.shape[axis] - sizes[0])]
    new, old = (torch.tensor(ids, dtype=torch.int64) for ids in zip(*pairs, *after, strict=True))
    entries = trained.index_select(axis, new), initial.index_select(axis, old)
    mixed = average([{"": each} for each in entries], [1 - share, share])[""]
    return trained.index_copy(axis, new, mixed)
