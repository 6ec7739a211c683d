"""Forecast of a training run: dropped utterances, memory of the largest batch, time, and disk space."""

import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from asr.apps.doctor.examination import splits_of
from asr.apps.doctor.finding import Case, Finding, Severity
from asr.apps.doctor.memory import FULL, LORA, for_tensors, memory_by_method
from asr.apps.doctor.planned import planned
from asr.apps.doctor.texts import coverage_findings, discarded_findings, round_trip_findings
from asr.apps.doctor.trial import Steps, Trial, device_of, free_bytes, largest_batch, padded_seconds, weight_bytes
from asr.base.text.numbers import counted, duration
from asr.core import build
from asr.core.build import build_model
from asr.core.checkpoint.saved import NEWEST
from asr.core.data.batch_plan import LESS_MEMORY
from asr.core.data.corpus import Corpus
from asr.core.data.epoch_plan import EpochPlan
from asr.core.data.manifest import Utterance
from asr.core.data.selection import FEWER_TOKENS, TEXT_TOO_LONG
from asr.core.data.training_set import TrainingSet
from asr.core.data.utterances import Utterances
from asr.core.recognition.model import Model
from asr.core.run.folder import fitted_front_end
from asr.core.run.initialization import start_of
from asr.core.run.learning_rate import PlannedRates, planned_rates
from asr.core.run.settings import RunSettings
from asr.errors import is_out_of_memory

GIGABYTE = 1e9
LONG_WARM_UP = 0.5  # fraction of the run's steps; a longer warm-up is reported
WARM_UP_ADVICE = (
    "Shorten schedule.warmup_steps, or set it to null and give schedule.warmup_fraction; or train for more epochs, or "
    "with more optimizer steps per epoch: a lower data.step_seconds, or, if it is null, data.batch_seconds or "
    "trainer.accumulate_grad_batches."
)
NEARLY_FULL = 0.9  # fraction of the memory; higher use is reported

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Forecast:
    """Expected time, memory and disk space of a training run (`facts`), its problems (`findings`) and its rates."""

    facts: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    rates: PlannedRates | None = None


def forecast(settings: RunSettings, utterances: Sequence[Utterance], model: Model) -> Iterator[Forecast]:
    """Plan a training run, forecast its memory, then measure optimizer steps on batches of the plan.

    Each part is yielded before the next is computed, because a step that takes too much memory may kill the process.
    Steps are not measured if their memory is forecast not to fit, or if the run is planned for another device
    (doctor.card_gigabytes).

    Args:
        settings: settings of the training run.
        utterances: utterances to train on; the model's tokenizer must cover their texts.
        model: newly initialised model; it is unusable afterwards.
    """
    training_set, augmentation, plan, per_epoch, total = planned(settings, utterances, model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    state = build.optimizer_bytes(settings.components, model, model.depths)
    rates = planned_rates(settings.components, total, per_epoch)
    facts, findings = disk(weight_bytes(model) + state, weight_bytes(model), settings)
    yield Forecast(
        [
            ("model", f"{type(model.encoder).__name__}, {parameters:,} parameters"),
            ("steps", f"{per_epoch:,} optimizer steps per epoch, {total:,} in the run"),
            ("learning rate", str(rates)),
            *facts,
        ],
        [
            *dropped_findings(training_set, settings.data.max_dropped_fraction),
            *warm_up_findings(rates),
            *findings,
        ],
        rates,
    )
    device = device_of(settings)
    trial = Trial(settings, model, training_set)
    items = largest_batch(plan, training_set)
    free = for_tensors(free_bytes(device), device)
    try:
        needed = memory_by_method(settings, model, lambda number: trial.made_up(items[:number]), len(items), free)
        sizes = ", ".join(f"{way} {size / GIGABYTE:.2f} GB" for way, size in needed.items())
        yield Forecast([("tensors", sizes)], card_findings(needed, settings))
        reason = not_measured(needed[chosen_way(needed, settings)], free, device, settings)
        if reason is not None:
            yield reason
            return
        logger.info("trying a batch of median size and the largest batches on this machine's %s", device.type)
        steps = trial.steps(plan, augmentation)
    except (RuntimeError, MemoryError) as error:
        yield Forecast(findings=[memory_finding(error)])
        return
    yield Forecast(
        time_facts(steps, plan, settings.num_workers, total * settings.trainer.accumulate_grad_batches),
        memory_findings(steps),
    )


def not_measured(needed: float, free: float, device: torch.device, settings: RunSettings) -> Forecast | None:
    """Report why steps are not measured on this machine; None if they are to be measured.

    `needed` is the forecast number of bytes of the tensors in a step on the largest batch; `free` is the number of
    bytes for tensors that the device has free.
    """
    card = settings.doctor.card_gigabytes
    if card is not None and device.type == "cpu":
        return Forecast([("time", f"not measured: the run is planned for a card with {card:g} GB, this is a CPU")])
    if needed <= free:
        return None
    message = f"the largest batch is forecast to have {needed / GIGABYTE:.1f} GB of tensors, and this machine's"
    message += (
        f" {device.type} has free memory for {free / GIGABYTE:.1f} GB. It was not tried, and no time was measured."
    )
    return Forecast(findings=[Finding("memory", Severity.ERROR, message, f"{LESS_MEMORY}, or free some memory.")])


def dropped_findings(training_set: TrainingSet, max_dropped_fraction: float) -> list[Finding]:
    """Report dropped training utterances, except empty texts and utterances beyond data.max_train_utterances.

    Args:
        training_set: the remaining and the dropped utterances.
        max_dropped_fraction: maximum fraction of utterances that are dropped because their text is too long; training
            stops if the fraction is larger.
    """
    findings = []
    for reason, dropped in training_set.dropped.items():
        if "max_train_utterances" in reason:
            continue
        cases = [Case("train", utterance, f"{utterance.duration:.2f} s: {utterance.text}") for utterance in dropped]
        if not all(case.utterance.text for case in cases):
            continue
        seconds = sum(case.utterance.duration for case in cases)
        number = f"{len(dropped):,} of {counted(training_set.num_given, 'utterance')}"
        message = f"{number} ({seconds / 3600:.2f} h): {reason}."
        severity, advice = Severity.WARNING, "Cut them into parts (asr.align --segments), or accept the loss."
        if reason == TEXT_TOO_LONG:
            advice = f"{FEWER_TOKENS}. If only a few are affected, correct their texts, or accept the loss."
            if len(dropped) > max_dropped_fraction * training_set.num_given:
                severity = Severity.ERROR
                message += f" Training stops above data.max_dropped_fraction={max_dropped_fraction:g}."
        findings.append(Finding("dropped from training", severity, message, advice, cases))
    return findings


def warm_up_findings(rates: PlannedRates) -> list[Finding]:
    """Report a run that ends before its peak learning rate, or soon after it."""
    if rates.total_steps > 1 and not rates.reaches_peak:
        message = f"the run ends before its learning rate reaches optimizer.lr; {rates}."
        return [Finding("warm-up", Severity.ERROR, message, WARM_UP_ADVICE)]
    if rates.warmup_share > LONG_WARM_UP:
        message = f"the learning rate rises in more than half of the run; {rates}."
        return [Finding("warm-up", Severity.WARNING, message, WARM_UP_ADVICE)]
    return []


def memory_finding(error: BaseException) -> Finding:
    """Report that the largest batch does not fit into memory; if the error has another cause, raise it again."""
    if not is_out_of_memory(error):
        raise error
    message = f"the largest batch of an epoch does not fit: {str(error).splitlines()[0]}"
    return Finding("memory", Severity.ERROR, message, f"{LESS_MEMORY}.")


def time_facts(steps: Steps, plan: EpochPlan, num_workers: int, batches: int) -> list[tuple[str, str]]:
    """Describe the expected time of an epoch and of the run, the largest batch, and the peak memory.

    `batches` is the number of batches of each process in the whole run.
    """
    computing, reading = _computing_and_reading(steps, plan)
    epoch = epoch_seconds(steps, plan, num_workers)
    share = reading / (computing + reading)
    workers = "in the main process (see data.num_workers)" if num_workers == 0 else f"in {num_workers} processes"
    scope = f"batches: {len(plan):,}; reading audio is {share:.0%} of the work, {workers}; validation is not included"
    facts = [("an epoch", f"about {duration(epoch)} here ({scope})")]
    total = epoch * batches / len(plan)
    facts.append(("the run", f"about {duration(total)} here"))
    longest = max(steps.seconds)
    facts.append(("largest batch", f"{longest:.1f} s of audio with padding, {steps.seconds[longest]:.2f} s per step"))
    facts.append(("memory", f"peak {steps.peak / GIGABYTE:.2f} GB of {steps.available / GIGABYTE:.1f} GB"))
    return facts


def epoch_seconds(steps: Steps, plan: EpochPlan, num_workers: int) -> float:
    """Estimate the time of an epoch, in seconds, without its validation."""
    computing, reading = _computing_and_reading(steps, plan)
    return computing + reading if num_workers == 0 else max(computing, reading / num_workers)


def _computing_and_reading(steps: Steps, plan: EpochPlan) -> tuple[float, float]:
    """Estimate the seconds of an epoch's steps, and of reading its audio in one process."""
    slowest = padded_seconds(plan).amax(dim=1).tolist()  # in each step, all processes wait for the slowest one
    audio = float(plan.durations[plan.plan.order].sum()) / padded_seconds(plan).shape[1]
    return sum(map(steps.of, slowest)), steps.reading * audio


def memory_findings(steps: Steps) -> list[Finding]:
    """Warn if nearly all memory is used."""
    if steps.peak <= NEARLY_FULL * steps.available:
        return []
    message = f"the largest batch takes {steps.peak / GIGABYTE:.1f} GB of {steps.available / GIGABYTE:.1f} GB."
    return [Finding("memory", Severity.WARNING, message, f"{LESS_MEMORY}.")]


def chosen_way(needed: Mapping[str, float], settings: RunSettings) -> str:
    """Return the training method of the settings; the arguments are those of `card_findings`."""
    return LORA if "adapter" in settings.components and LORA in needed else FULL


def card_findings(needed: Mapping[str, float], settings: RunSettings) -> list[Finding]:
    """Report an error if the run's tensors (from `memory_by_method`) do not fit on a card of doctor.card_gigabytes."""
    card = settings.doctor.card_gigabytes
    chosen = chosen_way(needed, settings)
    if card is None or needed[chosen] <= NEARLY_FULL * card * GIGABYTE:
        return []
    message = f"the largest batch has {needed[chosen] / GIGABYTE:.1f} GB of tensors; the card has {card:g} GB."
    fits = [way for way, size in needed.items() if size <= NEARLY_FULL * card * GIGABYTE]
    if chosen == LORA:
        message += " adapter=lora saves gradients and moments, but few activations."
    advice = f"{LESS_MEMORY}" + (f", or train with {' or '.join(fits)}" if fits else "") + "."
    return [Finding("card", Severity.ERROR, message, advice)]


def disk(state: float, weights: float, settings: RunSettings) -> tuple[list[tuple[str, str]], list[Finding]]:
    """Describe the disk space that the checkpoints and the bundle need, and report an error if less space is free.

    `state` is the size of a checkpoint without a moving average, and `weights` the size of the weights, in bytes.
    """
    ema = weights if settings.ema.decay is not None else 0.0
    checkpoints = NEWEST + settings.checkpoint.keep + 1  # + 1: the old one is deleted after the new one is written
    needed = checkpoints * (state + ema) + weights
    folder = Path(settings.run_dir).absolute()
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    size = f"{needed / GIGABYTE:.2f} GB for up to {checkpoints} checkpoints and the bundle"
    space = f"{size}; {free / GIGABYTE:.1f} GB is free"
    if needed <= free:
        return [("disk", space)], []
    advice = "Free some space, set another run_dir, or lower checkpoint.keep."
    return [("disk", space)], [Finding("disk", Severity.ERROR, f"{settings.run_dir} takes {space}.", advice)]


class Fresh(NamedTuple):
    """An untrained model.

    Args:
        model: model with a fitted tokenizer and fitted features; its weights are not used.
        utterances: utterances to train on, without texts that the tokenizer does not cover.
        findings: findings on texts that the tokenizer does not cover or changes, and on the initial model's pieces.
    """

    model: Model
    utterances: Utterances
    findings: list[Finding]


def fresh_model(settings: RunSettings, corpus: Corpus, sample: Corpus) -> Fresh:
    """Fit the tokenizer and the features, and build the model; nothing is written to the run folder.

    Args:
        settings: settings of the training run.
        corpus: the whole corpus.
        sample: utterances whose texts are tokenized, to find characters without a token.
    """
    start = start_of(settings.init)
    tokenizer, features, labels = fitted_front_end(settings, corpus, False, start)
    uncovered = coverage_findings(splits_of(sample), tokenizer, list(corpus.also_tests))
    uncovered_ids = {case.utterance.id for finding in uncovered for case in finding.cases if case.split == "train"}
    utterances = corpus.train
    if uncovered_ids:
        covered = [row for row, name in enumerate(utterances.ids) if name not in uncovered_ids]
        utterances = utterances.select(np.array(covered, dtype=np.int64))
    findings = [*uncovered, *round_trip_findings(splits_of(sample), tokenizer)]
    if start is not None and start.recognises and "head" in start.parts:
        findings += discarded_findings(start.tokenizer().names, tokenizer.names, start.source)
    return Fresh(build_model(settings.components, tokenizer, features, labels), utterances, findings)
