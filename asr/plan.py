"""python -m asr.plan [overrides]: print the batches of a training, before it starts.

The overrides are those of asr.train. Nothing is written, except a corpus that is absent and can be prepared.
"""

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from asr.base.text.numbers import counted, percent
from asr.base.text.printable import listed, printable
from asr.base.text.table import lay_out
from asr.core.training.hydra_command import experiment_command, read_recognition

if TYPE_CHECKING:
    from asr.core.data.batch_plan import BatchBounds
    from asr.core.data.epoch_plan import BatchSize, EpochPlan
    from asr.core.data.training_set import TrainingSet
    from asr.core.data.utterances import Utterances
    from asr.core.run.settings import RunSettings


def plan(settings: "RunSettings") -> None:
    """Print the plan of the first two epochs of a training, and judge it as asr.doctor does.

    Raises:
        InputError: training should not start.
    """
    import torch

    from asr.apps.doctor.finding import refuse_errors
    from asr.apps.doctor.forecast import dropped_findings, warm_up_findings
    from asr.apps.doctor.plan_costs import costs, first_step, load_of
    from asr.apps.doctor.planned import training_set_of
    from asr.apps.doctor.reading import epoch_reading
    from asr.base.storage.session import configure
    from asr.base.text.normalize import get_normalizer
    from asr.core import build
    from asr.core.data.corpus import prepare_if_absent, read_corpus
    from asr.core.data.dataset import fetch
    from asr.core.data.index_cache import IndexCache
    from asr.core.data.position import start_of_epoch
    from asr.core.objective.recognition import training_counts
    from asr.core.run.folder import fitted_front_end
    from asr.core.run.initialization import start_of
    from asr.core.run.learning_rate import planned_rates

    configure(settings.data.storage)
    prepare_if_absent(settings.corpus)
    torch.manual_seed(settings.seed)
    timed = _Timer()
    cache = IndexCache(settings.data.index_dir)
    normalize = get_normalizer(settings.components["normalizer"])
    corpus = read_corpus(settings.corpus, normalize, cache.utterances, cache.with_known_ids)
    corpus.check_shards()
    timed.note("indexes and shards")
    corpus.check_audio()
    tokenizer, features, labels = fitted_front_end(settings, corpus, False, start_of(settings.init))
    model = build.build_model(settings.components, tokenizer, features, labels)
    timed.note("tokenizer, features and model")
    counts = training_counts(settings, corpus, model)
    if settings.data.plan.batches.is_auto:
        from asr.apps.doctor.memory import find_batch_seconds

        found = find_batch_seconds(settings, corpus.train, model, counts)
        settings = settings.with_batch_seconds(found).with_accumulation()
        print(f"data.batch_seconds={settings.data.plan.batches.seconds:g}: the longest batch that fits\n")
    timed.note("token counts")
    training_set, _ = training_set_of(settings, corpus.train, model, counts)
    timed.note("selection of utterances")
    if settings.debug.same_utterances:
        corpus = corpus.only(training_set.utterances)
    processes, why = settings.trainer.num_processes()
    first = training_set.epoch(start_of_epoch(0, processes))
    timed.note("plan of an epoch")
    bounds = settings.trainer.bounds
    steps = training_set.total_steps(start_of_epoch(0, processes), 0, bounds)
    timed.note("steps of the run")
    fetch([training_set.utterances[item.row] for item in first.items(0, 0)])
    timed.note("first batch")
    reading = epoch_reading(first, training_set.utterances)
    load = load_of(reading, training_set, first, processes, settings.num_workers)
    print(f"{printable(settings.corpus.name)}: {_selection(training_set)}")
    print(f"{processes} {'process' if processes == 1 else 'processes'}: {why}")
    print(settings.step_size)
    print()
    plans = [first, training_set.epoch(start_of_epoch(1, processes))]
    print("\n".join(lay_out(_table(plans, bounds.accumulate, training_set.mixture.is_plain))))
    print()
    print("\n".join([*costs(load, settings.data.storage), *first_step(timed.seconds)]))
    print()
    print(f"the whole run: {steps:,} optimizer steps: {bounds}")
    rates = planned_rates(settings.components, steps, math.ceil(len(first) / bounds.accumulate))
    print(f"learning rate: {rates}")
    print(f"validation: {_validation(corpus.valid, training_set.settings.batches, processes)}")
    findings = [*dropped_findings(training_set, settings.data.max_dropped_fraction), *warm_up_findings(rates)]
    print("\n".join(line for finding in findings for line in finding.lines()), flush=True)
    refuse_errors(findings)


class _Timer:
    """Measures the time of each part of the start."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.perf_counter()

    def note(self, part: str) -> None:
        """Record the seconds since the previous part."""
        now = time.perf_counter()
        self.seconds[part], self._begun = now - self._begun, now


def _selection(training_set: "TrainingSet") -> str:
    """Return lines with the number of training utterances, and of dropped utterances by reason."""
    hours = training_set.utterances.hours
    lines = [f"{len(training_set)} of {training_set.num_given} training utterances, {hours:.2f} h"]
    for reason, dropped in training_set.dropped.items():
        lines.append(printable(f"  dropped {len(dropped)}: {reason} ({listed(dropped.ids)})"))
    if not training_set.dropped:
        lines.append("  dropped none")
    return "\n".join([*lines, *map(printable, training_set.describe_mixture())])


def _table(plans: "Sequence[EpochPlan]", accumulate: int, each_once: bool) -> list[list[str]]:
    """Return a table of plans: a row per figure with its name first, a column per plan."""
    from asr.core.data.batch_plan import changed_mates

    columns = [_figures(plan, accumulate) for plan in plans]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    if not each_once:  # epochs of a mixture have different utterances
        return rows
    changes = [changed_mates(before.plan, after.plan) for before, after in pairwise(plans)]
    return [*rows, ["batch-mates changed since the previous epoch", "", *map(percent, changes)]]


def _figures(plan: "EpochPlan", accumulate: int) -> dict[str, str]:
    summary, sizes = plan.summary(), plan.plan.sizes().flatten()
    updates = math.ceil(len(plan) / accumulate)
    return {
        "": f"epoch {plan.epoch + 1}",
        "optimizer steps": f"{updates}",
        "batches per process": f"{summary.steps}",
        "batches of all processes": f"{summary.batches}",
        "utterances": f"{summary.utterances}",
        "  kept at speed 1.0": f"{plan.kept_speed}",
        "hours, after speed perturbation": f"{summary.hours:.2f}",
        "audio per optimizer step, mean": f"{summary.hours * 3600 / updates:.1f} s",
        "padding": percent(summary.padding, 2),
        "shortest batch, with padding": _size(summary.shortest),
        "longest batch, with padding": _size(summary.longest),
        "utterances per batch": f"{sizes.min()} to {sizes.max()}, median {sizes.median()}",
    }


def _size(batch: "BatchSize") -> str:
    return f"{batch.padded_seconds:.2f} s, {counted(batch.utterances, 'utterance')}"


def _validation(utterances: "Utterances", bounds: "BatchBounds", processes: int) -> str:
    """Return a line with the number of validation batches."""
    from asr.core.data.batch_plan import plan_evaluation

    if not utterances:
        return "none"
    seconds = utterances.durations.tolist()
    batches = plan_evaluation(seconds, bounds, rank=0, world_size=1)
    most = len(plan_evaluation(seconds, bounds, rank=0, world_size=processes))
    padded = sum(len(batch) * max(seconds[index] for index in batch) for batch in batches if batch)
    hours, padding = sum(seconds) / 3600, 1 - sum(seconds) / padded
    counts = f"{len(seconds)} utterances, {hours:.2f} h, in {len(batches)} batches"
    return f"{counts}, at most {most} per process; padding {percent(padding, 2)}"


main = experiment_command(plan, read=read_recognition)

if __name__ == "__main__":
    main()
