"""Initialisation from a trained model: load its components and weights, and log what happens to each tensor."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast
from unicodedata import combining, normalize

import torch
from torch import Tensor, nn

from asr.base.settings.conf import default_settings
from asr.base.text.numbers import counted
from asr.base.text.printable import listed
from asr.core.build import PROMPT, build_features, build_labels, build_model, build_tokenizer, decoders_of
from asr.core.checkpoint.adapted import weights_digest
from asr.core.checkpoint.averaging import JOINER_OUTPUT
from asr.core.checkpoint.bundle import Bundle, is_encoder
from asr.core.checkpoint.load import bundle_recognizer, read_initial, read_settings
from asr.core.data.tokenizer_extension import WORD_START, checked_pieces, pieces_for
from asr.core.decoder_choice import greedy_decoder
from asr.core.hub.download import path_of
from asr.core.recognition.recognizer import Recognizer
from asr.core.run.settings import InitSettings, RunSettings, sections_of
from asr.errors import InputError
from asr.interfaces import StartsFromFrames, Tokenizer

if TYPE_CHECKING:
    from asr.core.recognition.model import Model

logger = logging.getLogger(__name__)

PARTS = ("normalizer", "tokenizer", "features", "encoder", PROMPT, "head")  # components copied from the model


def with_parts(settings: RunSettings, overrides: Sequence[str]) -> RunSettings:
    """Replace the components in `settings` by those of the model in `init.from`, unless overrides set them.

    With the model's head, the decoder is the greedy decoder of this head, because the model's own search may be slow
    and need files such as a language model.

    Args:
        settings: settings of a run.
        overrides: overrides on the command line, such as `encoder=transformer`, `encoder.block.dropout=0.1`.
    """
    source = settings.init.source
    if source is None:
        return settings
    used = [name for names in sections_of(settings.components) for name in names]
    model = read_settings(path_of(source))
    if removed := [override for override in overrides if override.lstrip("~").startswith(PARTS) and override[0] == "~"]:
        raise InputError(f"a part of the model of init.from can be replaced but not removed; got {removed[0]}.")
    if "debug=fast" in overrides:
        logger.info("debug=fast: the network has the size of the model in init.from")
    names = [override.partition("=")[0].lstrip("+") for override in overrides]
    parts: dict[str, Any] = {}
    for part in PARTS:
        if part in names:
            logger.info("init.from: the command line replaces the model's %s", part)
            continue
        if part not in model or part not in used:  # a prompt, or the head of an encoder
            continue
        parts[part] = deepcopy(model[part])
        for name in names:
            if name.startswith((f"{part}.", f"{part}/")):
                _put(parts, settings.components, name.replace("/", ".").split("."))
    unchosen = not any(name.startswith("decode") for name in names)
    if "head" in parts and unchosen:
        given = settings.components["decode"]
        if given["name"] in decoders_of(settings.components["head"]).greedy:
            parts["decode"] = _greedy_decoder(parts["head"], model["decode"])
            if parts["decode"] != given:
                logger.info("init.from: decode=%s, the greedy decoder of the model's head", parts["decode"]["name"])
    return replace(settings, components={**settings.components, **parts})


def _greedy_decoder(head: Mapping[str, Any], of_model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the head's greedy decoder: the model's own if it has this decoder, otherwise conf's."""
    name = greedy_decoder(decoders_of(head))
    return dict(of_model) if of_model["name"] == name else default_settings("decode", name)


def _put(parts: dict[str, Any], components: Mapping[str, Any], path: list[str]) -> None:
    """Replace the setting at this path in `parts` by the setting in `components`."""
    into: Any = parts
    for key in path[:-1]:
        into, components = into.setdefault(key, {}), components[key]
    given, of_model = components[path[-1]], into.get(path[-1])
    if given != of_model:
        logger.info("init.from: %s is %s, replacing the model's %s", ".".join(path), given, of_model)
    into[path[-1]] = components[path[-1]]


@dataclass(frozen=True)
class Initialization:
    """The trained model from which a run starts.

    Args:
        source: name of the model, as in `init.from`.
        bundle: the model.
        parts: parts whose weights are loaded: `encoder`, `head` or both.
    """

    source: str
    bundle: Bundle
    parts: Sequence[str]

    @cached_property
    def fingerprint(self) -> bytes:
        """Digest of the weights; it must not change when the run is resumed."""
        return weights_digest(self.bundle.weights)

    def learnt(self, components: Mapping[str, Any], part: str) -> dict[str, bytes] | None:
        """Return the files of a fitted part of the model, such as its tokenizer; None if the run has another part."""
        return self.bundle.files if components.get(part) == self.bundle.config.get(part) else None

    def extend_tokenizer(self, tokenizer: Tokenizer, settings: RunSettings, texts: Iterable[str]) -> None:
        """Load the model's tokenizer, and append the pieces of `init.extend_tokenizer`.

        Args:
            tokenizer: the run's tokenizer, not fitted.
            settings: settings of the run.
            texts: training texts.
        """
        setting, extension = "init.extend_tokenizer", settings.init.extend_tokenizer
        learnt = self.learnt(settings.components, "tokenizer")
        if learnt is None or not self.recognises:
            must = f"{setting} must be null unless the run has the tokenizer of the model in init.from, {self.source}"
            raise InputError(f"{must}; it has another one. Leave out tokenizer=..., or {setting}.")
        tokenizer.load(learnt)
        if isinstance(extension, list):
            pieces = checked_pieces(extension, tokenizer, setting)
        else:
            pieces = pieces_for(texts, tokenizer)
        tokenizer.extend(pieces)
        names = [piece.replace(" ", WORD_START) for piece in pieces]
        logger.info("%s: %s appended to the tokenizer: %s", setting, counted(len(names), "piece"), " ".join(names))

    @property
    def recognises(self) -> bool:
        """Whether the model is a recogniser; otherwise it is an encoder without a head."""
        return not is_encoder(self.bundle.config)

    def load_encoder(self, model: nn.Module) -> None:
        """Load the weights of the encoder alone into a new model; log the numbers of tensors as `load` does."""
        if "encoder" not in self.parts:
            must = f"init.parts must have encoder with {self.source}, because no other part of it is loaded"
            raise InputError(f"{must}; got {', '.join(self.parts)}.")
        state, weights = model.state_dict(), self.bundle.weights
        taken = {name: weight for name, weight in weights.items() if name.startswith("encoder.") and name in state}
        for name, weight in taken.items():
            if weight.shape != state[name].shape:
                self._refuse_shape(name, weight, state[name])
        model.load_state_dict({**state, **taken})
        self._log_tensors(state, taken, weights)

    def load(self, model: "Model") -> None:
        """Load the weights into a new recogniser; log the numbers of loaded, fresh and unused tensors."""
        if not self.recognises:
            self.load_encoder(model)
            return
        state = model.state_dict()
        tokenizer = self.tokenizer()
        weights, frame_head = self._named_as_in(model, tokenizer)
        # A prompt maps encoder_out, and is loaded with the encoder.
        parts = {*self.parts, *([PROMPT] if "encoder" in self.parts else [])}
        loadable = {name: weight for name, weight in weights.items() if name.split(".")[0] in parts}
        pieces = _Pieces(tokenizer, model.tokenizer)
        durations = self.bundle.config["head"].get("durations", []), [*getattr(model.head, "durations", ())]
        taken: dict[str, Tensor] = {}
        for name in state.keys() & loadable.keys():
            loaded, target = loadable[name], state[name]
            if name.startswith("head.") and pieces.differ and pieces.are_rows(loaded, target):
                taken[name] = pieces.rows(loaded)
            elif name.startswith("head.") and pieces.differ and pieces.are_columns(loaded, target):
                taken[name] = pieces.rows(loaded.mT).mT.contiguous()
            elif name.startswith(JOINER_OUTPUT) and loaded.shape[1:] == target.shape[1:]:
                taken[name] = pieces.joiner_rows(loaded, target, *durations)
            elif loaded.shape == target.shape:
                taken[name] = loaded
            else:
                self._refuse_shape(name, loaded, target)
        model.load_state_dict({**state, **taken})
        layer = [loadable.get(f"{frame_head}linear.{kind}") for kind in ("weight", "bias")]
        rows = [pieces.rows(tensor) if pieces.differ else tensor for tensor in layer if tensor is not None]
        if len(rows) == len(layer) and not any(".of_frames." in name for name in taken):
            self._start_joiner(cast(nn.Module, model.head), *rows)
        self._log_tensors(state, taken, weights)
        if pieces.differ:
            message = (
                "of %d tokens, %d have weights in the model; each of the others starts from the mean of the tokens "
                "that spell it"
            )
            logger.info(message, *pieces.counts)

    def _log_tensors(
        self, state: Mapping[str, Tensor], taken: Mapping[str, Tensor], weights: Mapping[str, Tensor]
    ) -> None:
        fresh = sorted(state.keys() - taken.keys())
        unused = sorted(weights.keys() - taken.keys())
        logger.info(
            "init.from %s: %d tensors loaded, %d fresh%s, %d unused%s",
            *(self.source, len(taken)),
            *(len(fresh), f" ({listed(fresh)})" if fresh else ""),
            *(len(unused), f" ({listed(unused)})" if unused else ""),
        )

    def _refuse_shape(self, name: str, loaded: Tensor, target: Tensor) -> NoReturn:
        must = f"settings that determine tensor sizes must equal those of the model in init.from, {self.source}"
        shapes = f"{name} has shape {tuple(loaded.shape)} in the model and {tuple(target.shape)} in this run"
        cure = "Leave out overrides of sizes (debug=fast is one), or replace the whole part (head=ctc)"
        raise InputError(f"{must}; {shapes}. {cure}.")

    def _start_joiner(self, head: nn.Module, weight: Tensor, bias: Tensor) -> None:
        """Initialise the joiner, if the head has one, from the CTC layer of the initial model."""
        for joiner in (part for part in head.modules() if isinstance(part, StartsFromFrames)):
            if joiner.start_from_frames(weight, bias):
                logger.info("init.from: the joiner starts from the CTC layer of %s", self.source)
            else:
                needs = f"head.joint_activation=relu head.joint_dim={2 * weight.shape[1]}"
                logger.info("init.from: the joiner starts from random weights; from the CTC layer with %s", needs)

    def recognizer(self, decode: Mapping[str, Any], device: torch.device) -> Recognizer:
        """Make the recogniser of the initial model; use the given decoder if it supports the model's head."""
        bundle = replace(self.bundle, config=self.bundle.config | {"decode": decode})
        try:
            return bundle_recognizer(bundle, Path(self.source), device)
        except InputError as error:
            logger.info("init.from %s is evaluated with its own decoder: %s", self.source, error)
            return bundle_recognizer(self.bundle, Path(self.source), device)

    def _named_as_in(self, model: "Model", tokenizer: Tokenizer) -> tuple[dict[str, Tensor], str | None]:
        """Rename the weights of the frame head, which may have another name in `model`.

        Returns:
            The weights, and the prefix of the names of the frame head's weights; None: the initial model has none.
        """
        with torch.device("meta"):
            parts = self.bundle.config
            source = build_model(parts, tokenizer, build_features(parts), build_labels(parts))
        old_prefix, new_prefix = _frame_head_prefix(source), _frame_head_prefix(model)
        if old_prefix is None or new_prefix is None:
            return self.bundle.weights, old_prefix
        renamed = {
            new_prefix + name.removeprefix(old_prefix) if name.startswith(old_prefix) else name: weight
            for name, weight in self.bundle.weights.items()
        }
        return renamed, new_prefix

    def tokenizer(self) -> Tokenizer:
        """Make the model's fitted tokenizer."""
        tokenizer = build_tokenizer(self.bundle.config)
        tokenizer.load(self.bundle.files)
        return tokenizer


def start_of(settings: InitSettings) -> Initialization | None:
    """Read the initial model; None: the run starts from random weights.

    Raises:
        InputError: the model has no weights.
    """
    if settings.source is None:
        return None
    bundle = read_initial(path_of(settings.source))
    if bundle.programs:
        raise InputError(f"init.from must be a model with weights; {settings.source} is an exported model.")
    return Initialization(settings.source, bundle, settings.parts)


def _frame_head_prefix(model: "Model") -> str | None:
    """Return the prefix of the names of the frame head's weights; None without a frame head."""
    paths = [path for path, module in model.named_modules() if module is model.head.frame_head]
    return f"{paths[0]}." if paths else None


class _Pieces:
    """Converts weights that have one row, or column, per token from the tokens of one tokenizer to those of another."""

    def __init__(self, old: Tokenizer, new: Tokenizer) -> None:
        self.differ = list(old.names) != list(new.names)
        self._sizes = (old.vocab_size, new.vocab_size)
        ids = {piece: number for number, piece in enumerate(old.names)}
        self._spellings = [_spelling(old, ids, piece) for piece in new.names]
        self.counts = (new.vocab_size, sum(piece in ids for piece in new.names))

    def are_rows(self, given: Tensor, wanted: Tensor) -> bool:
        """Whether `given` has a row for each old token, and `wanted` a row for each new token."""
        return (len(given), len(wanted)) == self._sizes and given.shape[1:] == wanted.shape[1:]

    def are_columns(self, given: Tensor, wanted: Tensor) -> bool:
        """Whether these are weights of a layer that reads tokens: `are_rows`, for columns."""
        return given.ndim == wanted.ndim == 2 and self.are_rows(given.mT, wanted.mT)

    def joiner_rows(self, given: Tensor, wanted: Tensor, old: list[int], new: list[int]) -> Tensor:
        """Convert the rows of a joiner's output: those of tokens, then one for each duration.

        Args:
            given: weights of the model.
            wanted: fresh weights, which remain the rows of durations if these are not the model's.
            old: durations of the model.
            new: durations of the run.
        """
        num_old, num_new = self._sizes
        tokens = self.rows(given[:num_old]) if self.differ else given[:num_old]
        return torch.cat([tokens, given[num_old:] if old == new else wanted[num_new:]])

    def rows(self, given: Tensor) -> Tensor:
        """Copy the rows of common pieces, and average rows for other pieces.

        A piece that only the new tokenizer has gets the mean of the rows of the old pieces that spell it, or spell it
        in lower case, or without marks. If they cannot spell it, it gets the mean of all rows.
        """
        means = [given[spelling] if spelling else given for spelling in self._spellings]
        return torch.stack([rows.mean(dim=0) for rows in means])


def _spelling(tokenizer: Tokenizer, ids: Mapping[str, int], piece: str) -> list[int]:
    """Spell a piece with tokens of another tokenizer: as it is, in lower case, or without marks; [] if impossible.

    `ids` are the ids of the tokenizer's pieces.
    """
    plain = "".join(each for each in normalize("NFKD", piece.casefold()) if not combining(each))
    for form in (piece, piece.lower(), plain):
        if form in ids:
            return [ids[form]]
        with suppress(InputError):
            return tokenizer.encode(form.strip())
    return []
