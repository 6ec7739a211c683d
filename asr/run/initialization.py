"""Starting from a trained model: its parts in the settings, its weights in the net, and an account of every tensor."""

import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from asr.build import build_features, build_model, build_tokenizer
from asr.checkpoint.adapted import weights_digest
from asr.checkpoint.bundle import Bundle
from asr.checkpoint.load import bundle_recognizer, read_model, read_settings
from asr.errors import InputError
from asr.interchange.hub import path_of
from asr.interfaces import Tokenizer
from asr.recognition.recognizer import Recognizer
from asr.run.settings import InitSettings, RunSettings
from asr.text.printable import listed

if TYPE_CHECKING:
    from asr.recognition.model import Model

logger = logging.getLogger(__name__)

PARTS = ("normalizer", "tokenizer", "features", "encoder", "head")  # components that the model brings


def with_parts(settings: RunSettings, overrides: Sequence[str]) -> RunSettings:
    """Take the components of the model that `init.from` names, but for what overrides replace by name.

    Args:
        settings: of a run.
        overrides: of the command line, such as `encoder=transformer`, `encoder.dropout=0.1`.

    Raises:
        InputError: there is no such model.
    """
    source = settings.init.source
    if source is None:
        return settings
    model = read_settings(path_of(source))
    if removed := [override for override in overrides if override.lstrip("~").startswith(PARTS) and override[0] == "~"]:
        raise InputError(f"a part of the model of init.from can be replaced and not removed; got {removed[0]}.")
    if "debug=fast" in overrides:
        logger.info("debug=fast: with init.from the net is the model's, not tiny")
    names = [override.partition("=")[0].lstrip("+") for override in overrides]
    parts: dict[str, Any] = {}
    for part in PARTS:
        if part in names:
            logger.info("init.from: %s is not the model's: the command line has another", part)
            continue
        parts[part] = deepcopy(model[part])
        for name in names:
            if name.startswith((f"{part}.", f"{part}/")):
                _put(parts, settings.components, name.replace("/", ".").split("."))
    return replace(settings, components={**settings.components, **parts})


def _put(parts: dict[str, Any], components: Mapping[str, Any], path: list[str]) -> None:
    """Replace the setting of this path by that of `components`."""
    into: Any = parts
    for key in path[:-1]:
        into, components = into.setdefault(key, {}), components[key]
    given, of_model = components[path[-1]], into.get(path[-1])
    if given != of_model:
        logger.info("init.from: %s is %s, and not the model's %s", ".".join(path), given, of_model)
    into[path[-1]] = components[path[-1]]


@dataclass(frozen=True)
class Initialization:
    """A trained model that a run starts from.

    Args:
        source: as `init.from` names it.
        bundle: the model.
        parts: `encoder`, `head`: whose weights are taken.
    """

    source: str
    bundle: Bundle
    parts: Sequence[str]

    @cached_property
    def fingerprint(self) -> bytes:
        """What tells this start from another when a run is resumed."""
        return weights_digest(self.bundle.weights)

    def learnt(self, components: Mapping[str, Any], part: str) -> dict[str, bytes] | None:
        """Files from which tokenizer or features load what they learnt; None where the run has its own."""
        return self.bundle.files if components[part] == self.bundle.config[part] else None

    def load(self, model: "Model") -> None:
        """Put the weights into a fresh model, and say what became of each of them.

        Raises:
            InputError: a tensor has another shape than the model's own.
        """
        state = model.state_dict()
        tokenizer = self._tokenizer()
        weights = self._named_as_in(model, tokenizer)
        ours = {name: weight for name, weight in weights.items() if name.split(".")[0] in self.parts}
        pieces = _Pieces(tokenizer, model.tokenizer)
        taken: dict[str, Tensor] = {}
        for name in state.keys() & ours.keys():
            given, wanted = ours[name], state[name]
            if name.startswith("head.") and pieces.differ and pieces.are_rows(given, wanted):
                taken[name] = pieces.rows(given)
            elif given.shape == wanted.shape:
                taken[name] = given
            else:
                must = f"{self.source}: a setting that shapes a model must be its own"
                shapes = f"{name} is {tuple(given.shape)} there and {tuple(wanted.shape)} here"
                cure = "Leave it out (debug=fast sets some), or replace its part by name (head=ctc)"
                raise InputError(f"{must}; {shapes}. {cure}.")
        model.load_state_dict({**state, **taken})
        fresh = sorted(state.keys() - taken.keys())
        unused = sorted(weights.keys() - taken.keys())
        logger.info(
            "init.from %s: %d tensors taken, %d fresh%s, %d not used%s",
            *(self.source, len(taken)),
            *(len(fresh), f" ({listed(fresh)})" if fresh else ""),
            *(len(unused), f" ({listed(unused)})" if unused else ""),
        )
        if pieces.differ:
            logger.info("of %d tokens %d are the model's, the others begin near their spelling", *pieces.counts)

    def recognizer(self, decode: Mapping[str, Any], device: torch.device) -> Recognizer:
        """Make the recogniser that the run starts from, with another decoder where that goes with its head.

        Args:
            decode: settings of the decoder.
            device: where to put the weights.
        """
        bundle = replace(self.bundle, config=self.bundle.config | {"decode": decode})
        try:
            return bundle_recognizer(bundle, Path(self.source), device)
        except InputError as error:
            logger.info("init.from %s recognises with its own decoder: %s", self.source, error)
            return bundle_recognizer(self.bundle, Path(self.source), device)

    def _named_as_in(self, model: "Model", tokenizer: Tokenizer) -> dict[str, Tensor]:
        """Name the weights as the model does, in whose head the output layer of frames may lie elsewhere."""
        with torch.device("meta"):
            source = build_model(self.bundle.config, tokenizer, build_features(self.bundle.config))
        theirs, ours = _frame_head_prefix(source), _frame_head_prefix(model)
        if theirs is None or ours is None:
            return self.bundle.weights
        return {
            ours + name.removeprefix(theirs) if name.startswith(theirs) else name: weight
            for name, weight in self.bundle.weights.items()
        }

    def _tokenizer(self) -> Tokenizer:
        tokenizer = build_tokenizer(self.bundle.config)
        tokenizer.load(self.bundle.files)
        return tokenizer


def start_of(settings: InitSettings) -> Initialization | None:
    """Read the model that a run starts from; None: from nothing.

    Raises:
        InputError: it has no weights.
    """
    if settings.source is None:
        return None
    bundle = read_model(path_of(settings.source))
    if bundle.programs:
        raise InputError(f"{settings.source}: a model to start from must have weights; an exported one has none.")
    return Initialization(settings.source, bundle, settings.parts)


def _frame_head_prefix(model: "Model") -> str | None:
    """Begin the names of the weights that tell frames' tokens; None where nothing does."""
    paths = [path for path, module in model.named_modules() if module is model.head.frame_head]
    return f"{paths[0]}." if paths else None


class _Pieces:
    """From rows of one tokenizer's tokens to rows of another's."""

    def __init__(self, old: Tokenizer, new: Tokenizer) -> None:
        self.differ = list(old.pieces) != list(new.pieces)
        self._sizes = (old.vocab_size, new.vocab_size)
        ids = {piece: number for number, piece in enumerate(old.pieces)}
        self._spellings = [[ids[piece]] if piece in ids else _spelling(old, piece) for piece in new.pieces]
        self.counts = (new.vocab_size, sum(piece in ids for piece in new.pieces))

    def are_rows(self, given: Tensor, wanted: Tensor) -> bool:
        """Tell whether tensors have a row for each token."""
        return (len(given), len(wanted)) == self._sizes and given.shape[1:] == wanted.shape[1:]

    def rows(self, given: Tensor) -> Tensor:
        """Keep the rows of pieces that both have; the others are the mean of the rows that spell them, or of all."""
        means = [given[spelling] if spelling else given for spelling in self._spellings]
        return torch.stack([rows.mean(dim=0) for rows in means])


def _spelling(tokenizer: Tokenizer, piece: str) -> list[int]:
    """Spell a piece with other tokens; with none, where it cannot be."""
    try:
        return tokenizer.encode(piece.strip())
    except InputError:
        return []
