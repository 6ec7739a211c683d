"""The share of the initial model in each weight of a fine-tuned model, chosen on speech that was not trained on."""

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from asr.apps.finetune.own_corpus import DATA, Say, kept_speech
from asr.base.system.files import write_whole_text
from asr.base.text.normalize import get_normalizer
from asr.base.text.numbers import counted
from asr.core.checkpoint.averaging import with_share_of
from asr.core.checkpoint.bundle import Bundle
from asr.core.checkpoint.load import bundle_recognizer, read_initial, read_model
from asr.core.data.batch import Batch, collate
from asr.core.data.batch_plan import plan_evaluation
from asr.core.data.dataset import Item, SpeechDataset
from asr.core.data.manifest import Utterance, read_manifest, write_manifest
from asr.core.data.split import halves
from asr.core.hub.download import path_of
from asr.core.recognition.model import Model
from asr.core.run.names import SHARES as SHARES_FILE
from asr.core.run.settings import RunSettings
from asr.core.training.hydra_command import compose_settings
from asr.core.training.overrides import setting
from asr.errors import InputError

# recipes/finetune/README.md, "The share of the initial model"; 1 is the initial model itself.
SHARES = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0)
KEPT = 0.03  # a loss on --keep may rise by this share: one that rises in nearly all utterances may still be small
LOST = 0.1  # of the gain in loss, for a larger share: a standard error on few clips is larger than most gains
VALID = "valid"  # name of a manifest
HALVES = "halves"  # folder of the runs on the halves
NO_TESTS = "corpus.test=[]", "corpus.also_test=[]"
NOT_OF_HALVES = "trainer.max_time=", "early_stopping"  # a time that is for the whole, and what needs a validation

Train = Callable[[Sequence[str]], None]  # runs asr.train with these settings

logger = logging.getLogger(__name__)


class ShareLosses(NamedTuple):
    """ShareLosses of utterances for each share.

    Args:
        values: float64 (S, N), summed over the tokens of each utterance.
        tokens: (N,), the numbers of tokens.
    """

    values: np.ndarray
    tokens: np.ndarray

    def per_token(self) -> list[float]:
        """Return the loss per token for each share."""
        return [float(loss) for loss in self.values.sum(axis=1) / max(1, self.tokens.sum())]

    def above(self, share: int, other: int) -> tuple[float, float]:
        """Return by how much the loss of one share is above that of another, and the standard error: paired sums."""
        differences = self.values[share] - self.values[other]
        number = len(differences)
        error = float(differences.std(ddof=1)) * number**0.5 if number > 1 else 0.0
        return float(differences.sum()), error


class ChosenShare(NamedTuple):
    """A chosen share.

    Args:
        share: the share, one of those that were tried.
        reason: why it is chosen, a clause.
        rows: the loss per token of each share on speech that was not trained on, and on --keep.
    """

    share: float
    reason: str
    rows: list[dict[str, float]]

    def lines(self) -> list[str]:
        """Describe the losses of each share and the choice."""
        has_keep = any("keep" in row for row in self.rows)
        what = "share of MODEL in each weight, and loss per token on speech that was not trained on"
        lines = [f"{what}, and on --keep" if has_keep else what]
        for row in self.rows:
            kept = f"{row['keep']:10.4f}" if has_keep else ""
            lines.append(f"  {row['share']:<5g}{row['loss']:10.4f}{kept}{'  <- chosen' * (row['share'] == self.share)}")
        return [*lines, f"share {self.share:g}: {self.reason}"]


def choose(data: ShareLosses, keep: ShareLosses | None = None, may_be_initial: bool = True) -> ChosenShare:
    """Choose one of SHARES.

    It is 1 if the loss of the initial model on speech that was not trained on is within a standard error of the lowest.
    Otherwise it is the largest share whose loss is within a standard error of the lowest, and that loses at most LOST
    of the gain. With speech to keep, only those shares are considered whose loss on it exceeds that of the initial
    model by at most a standard error, or by at most the fraction KEPT.

    Args:
        data: losses of utterances like those that the model was trained on.
        keep: losses of speech that must not get worse; None: there is none.
        may_be_initial: whether the share may be 1; otherwise the initial model cannot spell the texts.
    """
    initial = len(SHARES) - 1
    allowed = list(range(initial + may_be_initial))
    if keep is not None:
        kept = {number: keep.above(number, initial) for number in allowed}
        small = KEPT * float(keep.values[initial].sum())
        not_worse = [number for number, (above, error) in kept.items() if above <= max(error, small)]
        allowed = not_worse or allowed[-1:]
    best = min(allowed, key=lambda number: float(data.values[number].sum()))
    near = {number: data.above(number, best) for number in allowed}
    lost = LOST * max(0.0, float(data.values[initial].sum() - data.values[best].sum()))
    chosen = max(
        number for number, (above, error) in near.items() if above <= (error if number == initial else min(error, lost))
    )
    rows = [
        {"share": share, "loss": loss} | ({} if keep is None else {"keep": keep.per_token()[number]})
        for number, (share, loss) in enumerate(zip(SHARES, data.per_token(), strict=True))
    ]
    reason = "its loss is the lowest"
    if chosen != best:
        reason = f"the largest whose loss is within a standard error of the lowest, and {LOST:.0%} of the gain"
    if len(allowed) < initial + may_be_initial:
        reason += f", of those that raise the loss on --keep by at most a standard error or {KEPT:.0%}"
    if chosen == initial:
        reason = "the loss of MODEL itself is within a standard error of the lowest, so nothing was gained"
    return ChosenShare(SHARES[chosen], reason, rows)


def losses(
    initial: Bundle, trained: Bundle, utterances: Sequence[Utterance], settings: RunSettings, device: torch.device
) -> ShareLosses:
    """Compute the losses of utterances for each share of the initial model in a trained model.

    Utterances that cannot be read, or whose text is too long for their audio, are left out and logged.

    Args:
        initial: the initial model.
        trained: the trained model, a whole model.
        utterances: utterances with texts that the trained model can spell.
        settings: settings of the training.
        device: device of the models.
    """
    torch.set_num_threads(settings.num_threads)
    model = bundle_recognizer(trained, Path("the trained model"), device).model
    normalize = get_normalizer(settings.components["normalizer"])
    longest = settings.data.plan.selection.max_seconds
    utterances = [replace(each, text=normalize(each.text)) for each in utterances if each.duration <= longest]
    plan = plan_evaluation([each.duration for each in utterances], settings.data.plan.batches, rank=0, world_size=1)
    dataset = SpeechDataset(utterances, model.features, model.reference.for_evaluation())
    batches = [
        collate(dataset.__getitems__([Item(0, row, 1.0) for row in rows]), model.reference.labels) for rows in plan
    ]
    for rejected in (each for batch in batches for each in batch.rejected):
        logger.warning("left out of the choice of the share: %r: %s", rejected.utterance.id, rejected.reason)
    batches = [batch.to(device) for batch in batches if len(batch)]
    if not batches:
        raise InputError(
            f"a share must be chosen on speech that can be read; got {counted(len(utterances), 'utterance')}."
        )
    values = []
    for share in SHARES:
        model.load_state_dict(with_share_of(initial, trained, share))
        values.append(np.concatenate([_losses(model, batch) for batch in batches]))
    tokens = torch.cat([batch.token_lengths for batch in batches]).cpu().numpy()
    fits = np.isfinite(values).all(axis=0)
    if not fits.all():
        too_long = counted(int((~fits).sum()), "text")
        logger.warning("left out of the choice of the share: %s too long for the audio", too_long)
    return ShareLosses(np.stack(values)[:, fits], tokens[fits])


@torch.inference_mode()
def _losses(model: Model, batch: Batch) -> np.ndarray:
    """Compute the loss of each utterance of a batch, (B,)."""
    loss = model.head.losses(model.encode(batch), batch.targets)["loss"]
    return np.asarray(loss.double().cpu())


def joined(first: ShareLosses, second: ShareLosses) -> ShareLosses:
    """Join the losses of two sets of utterances."""
    return ShareLosses(np.concatenate([first.values, second.values], 1), np.concatenate([first.tokens, second.tokens]))


def chosen_share(
    output: Path, stored: Mapping[str, Any], train: Train, say: Say, device_of: Callable[[RunSettings], torch.device]
) -> float:
    """Train the model, and choose the share of the initial model, which the last start of the training needs.

    With a validation set, the losses are those of its utterances. Otherwise two models are trained on a half of the
    training utterances each, in half the steps, and the losses are those of the other half.

    Args:
        output: folder of the run.
        stored: choices of asr.finetune.
        train: runs asr.train with these settings; a training that has ended is not repeated.
        say: prints a line.
        device_of: returns the device of a run with these settings.

    Returns:
        The share, from 0 to 1; 1: the initial model itself.
    """
    if (path := output / SHARES_FILE).is_file():
        return _say(ChosenShare(**json.loads(path.read_text(encoding="utf-8"))), say)
    overrides: list[str] = stored["overrides"]
    settings, data, base = compose_settings(overrides), output / DATA, path_of(stored["model"])
    models = _Models(read_initial(base), base if stored["is_adapter"] else None, settings, device_of(settings))
    train(replaced(overrides, *NO_TESTS))
    if (data / f"{VALID}.jsonl").is_file():
        measured = models.losses(output, read_manifest(data / f"{VALID}.jsonl", settings.corpus.labels))
    else:
        measured = _of_halves(output, overrides, stored["pieces"], train, say, models)
    kept = kept_speech(output)
    keep = models.losses(output, kept) if kept else None
    choice = choose(measured, keep, may_be_initial=not stored["pieces"])
    write_whole_text(path, json.dumps(choice._asdict(), indent=1) + "\n")
    return _say(choice, say)


def _say(choice: ChosenShare, say: Say) -> float:
    for line in choice.lines():
        say(line)
    return choice.share


class _Models(NamedTuple):
    """The initial model of runs, the path of their adapters' base, if they are adapters, their settings and device."""

    initial: Bundle
    adapter_base: Path | None
    settings: RunSettings
    device: torch.device

    def losses(self, run_dir: Path, utterances: Sequence[Utterance]) -> ShareLosses:
        """Compute the losses of utterances for each share of the initial model in the model of a run."""
        trained = read_model(run_dir, self.adapter_base)
        return losses(self.initial, trained, utterances, self.settings, self.device)


def _of_halves(
    output: Path, overrides: Sequence[str], pieces: Sequence[str], train: Train, say: Say, models: _Models
) -> ShareLosses:
    """Train on each half of the training utterances; return the losses of the other halves."""
    data, settings = output / DATA, models.settings
    parts = halves(read_manifest(data / "train.jsonl", settings.corpus.labels), settings.seed)
    names = [f"half_{number}" for number in (1, 2)]
    for name, part in zip(names, parts, strict=True):
        write_manifest(data / f"{name}.jsonl", part)
    results, steps = [], settings.trainer.max_steps
    for number, (name, other) in enumerate(zip(names, parts[::-1], strict=True), start=1):
        say(f"training {number} of 2 on a half of the speech, to choose the share of MODEL in each weight")
        run_dir = output / HALVES / name
        own = [setting("run_dir", str(run_dir)), f"corpus.train=[{name}.jsonl]", "checkpoint.select=last", *NO_TESTS]
        own += [setting("init.extend_tokenizer", [*pieces])] if pieces else []
        own += [f"trainer.max_steps={math.ceil(steps / 2)}"] if steps > 0 else []
        train(replaced([each for each in overrides if not each.lstrip("+").startswith(NOT_OF_HALVES)], *own))
        results.append(models.losses(run_dir, other))
    return joined(*results)


def replaced(overrides: Iterable[str], *others: str) -> list[str]:
    """Return overrides in which `others` take the place of those of the same settings."""
    keys = {other.partition("=")[0] for other in others}
    return [*(each for each in overrides if each.lstrip("+").partition("=")[0] not in keys), *others]
