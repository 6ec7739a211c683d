"""Settings of a fine-tuning run, chosen from the model, the amount of speech and the device."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from asr.base.text.numbers import counted, duration
from asr.base.text.printable import printable
from asr.core.data.manifest import Utterance
from asr.core.data.tokenizer_extension import spells
from asr.core.run.names import FULL, LORA
from asr.errors import InputError

FULL_FROM_SECONDS = 30 * 60.0  # of training speech: recipes/finetune/README.md, "How much speech"
NORMS = "*.convolution.norm.*"
MIN_EPOCHS, MIN_STEPS = 5, 60
LONG_SECONDS, MAX_EPOCHS = 3600.0, 6  # above an hour of training speech, MIN_STEPS counts only up to MAX_EPOCHS
RESERVE = 0.1  # share of a run's time for what is not measured
BATCH_SECONDS, MAX_BATCH_SECONDS = 20.0, 200.0
# The WER of 30.84 % of 7,327 words of speechocean762 has an interval of 3.41 points (recipes/finetune/README.md): its
# variance is 2.6 times as large as if errors were independent.
TYPICAL_WER, DEPENDENCE = 0.3, 2.6

MEASURED = (
    "these rules were measured on English speech with a CTC model of 13 million parameters, not on other languages and "
    "heads: recipes/finetune/README.md"
)


class ChosenSettings(NamedTuple):
    """Settings of asr.train, and why they are chosen.

    Args:
        overrides: the settings.
        reason: a clause that follows the settings.
    """

    overrides: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{' '.join(self.overrides)}: {self.reason}"


def method_choice(method: str | None, train_seconds: float, weights: Iterable[str], extends: bool) -> ChosenSettings:
    """Choose between training all weights and an adapter.

    Args:
        method: one of METHODS; None: by the amount of speech.
        train_seconds: seconds of training speech.
        weights: names of the model's tensors.
        extends: whether the tokenizer is extended; an adapter then has the whole head, which has new rows.
    """
    given = method is not None
    speech = f"{train_seconds / 60:.1f} min of training speech"
    if (method or (LORA if train_seconds < FULL_FROM_SECONDS else FULL)) == LORA:
        reason = "as given" if given else f"{speech} are below {FULL_FROM_SECONDS / 60:.0f} min"
        adapter = "adapter=lora", "optimizer.lr=1e-3", "optimizer.layer_decay=1", "init.frozen=[]"
        head = ("adapter.trained=[head.*]",) if extends else ()
        return ChosenSettings((*adapter, *head), f"a small adapter is trained, {reason}")
    reason = "as given" if given else f"{speech} are at least {FULL_FROM_SECONDS / 60:.0f} min"
    has_batch_norms = any(name.endswith(".convolution.norm.running_mean") for name in weights)
    frozen = f"init.frozen=[{NORMS}]" if has_batch_norms else "init.frozen=[]"
    norms = "; statistics of small batches would harm its batch norms" if has_batch_norms else ""
    settings = "optimizer.lr=2e-4", "optimizer.layer_decay=0.9", frozen
    return ChosenSettings(settings, f"all weights are trained, {reason}{norms}")


def mask_choices(features: Mapping[str, Any]) -> Iterator[ChosenSettings]:
    """Choose no masks over mel bins for a model whose features, given their config, are samples."""
    if "num_mel_bins" not in features:
        yield ChosenSettings(("augment.spec_augment.num_freq_masks=0",), "the model reads samples, not mel bins")


def batch_choice(durations: Sequence[float], on_gpu: bool) -> ChosenSettings:
    """Choose the size of a batch: as in the measurements, on a GPU a tenth of the epoch if that is more.

    Args:
        durations: durations of the utterances that are trained on, in seconds; the longest must fit.
        on_gpu: whether the run uses a GPU, where a step takes nearly as long for a small batch.
    """
    longest = math.ceil(max(durations))
    tenth = min(MAX_BATCH_SECONDS, sum(durations) // 10) if on_gpu else 0.0
    reasons = {
        longest: f"the longest utterance has {longest} s",
        tenth: "a tenth of an epoch, on a GPU",
        BATCH_SECONDS: "as in the measurements",
    }
    seconds = max(reasons)
    return ChosenSettings((f"data.batch_seconds={seconds:g}",), reasons[seconds])


def smaller_batch_choice(batch_seconds: float) -> ChosenSettings:
    """Choose a batch that a trial has made smaller."""
    return ChosenSettings((f"data.batch_seconds={batch_seconds:g}",), "what fits into the free memory")


def length_choice(per_epoch: int, train_seconds: float) -> ChosenSettings:
    """Choose the number of optimizer steps: MIN_EPOCHS epochs, or MIN_STEPS steps if these are more.

    Args:
        per_epoch: optimizer steps of an epoch.
        train_seconds: seconds of training speech; above an hour, MIN_STEPS counts only up to MAX_EPOCHS epochs.
    """
    steps = num_steps(per_epoch, train_seconds)
    epochs = f"{steps / per_epoch:.1f} epochs of {counted(per_epoch, 'step')}"
    return ChosenSettings(("trainer.max_epochs=-1", f"trainer.max_steps={steps}"), epochs)


def num_steps(per_epoch: int, train_seconds: float) -> int:
    """Return the number of optimizer steps of a run without a given time."""
    steps = max(MIN_EPOCHS * per_epoch, MIN_STEPS)
    return min(steps, MAX_EPOCHS * per_epoch) if train_seconds > LONG_SECONDS else steps


class RunSeconds(NamedTuple):
    """Seconds of the parts of a run.

    Args:
        step: an optimizer step.
        validation: a validation; there is one before the first step, and one after each epoch.
        tests: all tests, before and after the training.
    """

    step: float
    validation: float
    tests: float

    def of(self, steps: int, per_epoch: int) -> float:
        """Return the seconds of a run, with a reserve for what is not measured."""
        validations = (1 + steps // per_epoch) * self.validation
        return (steps * self.step + validations + self.tests) / (1 - RESERVE)


def hours_choice(hours: float, seconds: RunSeconds, per_epoch: int, train_seconds: float) -> ChosenSettings:
    """Choose the number of optimizer steps: that of a run without a given time, or fewer if they do not fit into it.

    A time is a limit, not a target: more steps make a model worse that has learnt the texts by heart. Fewer steps are
    whole epochs, or a part of the first one.

    Args:
        hours: time of the run, with validations and tests.
        seconds: seconds of the run's parts, measured.
        per_epoch: optimizer steps of an epoch.
        train_seconds: seconds of training speech.
    """
    budget = 3600 * hours
    least = min(per_epoch, MIN_STEPS)
    if seconds.of(least, per_epoch) > budget:
        needed = math.ceil(seconds.of(least, per_epoch) / 36) / 100
        must = f"--hours must be at least {needed:g}, for {counted(least, 'step')} and the tests on this machine"
        raise InputError(f"{must}; got {hours:g}.")
    steps = num_steps(per_epoch, train_seconds)
    rest = budget - seconds.of(steps, per_epoch)
    if rest < 0:
        left = (1 - RESERVE) * budget - seconds.tests - seconds.validation
        epochs = math.floor(left / (per_epoch * seconds.step + seconds.validation) + 1e-9)
        steps = epochs * per_epoch if epochs else min(per_epoch - 1, math.floor(left / seconds.step + 1e-9))
    reason = f"{steps / per_epoch:.1f} epochs, a step takes {seconds.step:.2f} s here; about "
    reason += f"{duration(seconds.of(steps, per_epoch))} with validations, tests and a reserve of {RESERVE:.0%}"
    if rest >= 60:
        reason += f"; {duration(rest)} of --hours are left over, because with more steps a model learns texts by heart"
    return ChosenSettings(("trainer.max_epochs=-1", f"trainer.max_steps={steps}"), reason)


def deadline_choice(hours: float, seconds: RunSeconds) -> ChosenSettings:
    """Choose the time after which the training ends early, so that the tests after it end within `hours`."""
    left = int(3600 * hours - seconds.tests)
    minutes, clock_seconds = divmod(left, 60)
    clock = f"{minutes // 1440:02}:{minutes // 60 % 24:02}:{minutes % 60:02}:{clock_seconds:02}"
    return ChosenSettings((f"+trainer.max_time={clock!r}",), "the training ends then, even before its last step")


def selection_choice(has_valid: bool) -> ChosenSettings:
    """Choose which weights the bundle contains; without a validation, these are the last."""
    if has_valid:
        return ChosenSettings(
            ("checkpoint.select=average_best", "checkpoint.keep=3"), "the validation chooses the weights"
        )
    return ChosenSettings(
        ("checkpoint.select=last",),
        "too few utterances for a validation of each epoch, so the number of steps is fixed",
    )


def device_choice(on_gpu: bool, num_cores: int) -> ChosenSettings:
    """Choose the device: a GPU if there is one."""
    if on_gpu:
        return ChosenSettings(("trainer=gpu",), "this machine has a GPU")
    return ChosenSettings((f"num_threads={num_cores}",), "this machine has no GPU that torch can use")


def without(choices: Iterable[ChosenSettings], given: Sequence[str]) -> Iterator[ChosenSettings]:
    """Leave out the settings that the user gives."""
    names = {override.partition("=")[0] for override in given}
    for choice in choices:
        left = tuple(override for override in choice.overrides if override.partition("=")[0] not in names)
        if left:
            yield choice._replace(overrides=left)


class Spellable(NamedTuple):
    """Utterances whose texts the model's tokens can spell.

    Args:
        utterances: the utterances; a text with characters that no token covers has lost them, and is normalised.
        lost: numbers of lost characters.
        changed: ids of the utterances that lost a character.
    """

    utterances: list[Utterance]
    lost: Mapping[str, int]
    changed: list[str]

    def describe(self, name: str) -> str:
        """Describe the loss; `name` is the name of the part, such as training."""
        letters = ", ".join(f"{character!r} ({number:,})" for character, number in Counter(self.lost).most_common(10))
        texts = counted(len(self.changed), f"{name} text")
        return printable(f"the model has no token for {letters}: {texts} lose these characters")


def spelt(utterances: Sequence[Utterance], normalize: Callable[[str], str], encode: Callable[[str], Any]) -> Spellable:
    """Remove the characters that a tokenizer does not cover from texts.

    Args:
        utterances: training or validation utterances.
        normalize: the model's text normaliser.
        encode: the tokenizer's `encode`, which raises InputError for a text that it does not cover.
    """

    @cache
    def is_covered(character: str) -> bool:
        return character == " " or spells(encode, character)

    results, lost, changed = [], Counter[str](), []
    for utterance in utterances:
        text = normalize(utterance.text)
        missing = [character for character in text if not is_covered(character)]
        if missing:
            lost.update(missing)
            changed.append(utterance.id)
            text = " ".join("".join(filter(is_covered, text)).split())
            utterance = replace(utterance, text=text)
        results.append(utterance)
    return Spellable(results, lost, changed)


def expected_width(num_words: int) -> float:
    """Return about how wide the 95 % interval of a WER on this number of words will be, as a fraction."""
    variance = TYPICAL_WER * (1 - TYPICAL_WER) * DEPENDENCE / max(1, num_words)
    return min(1.0, 2 * 1.96 * math.sqrt(variance))
