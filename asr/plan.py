"""python -m asr.plan [overrides]: print the batches that asr.train would train on, before any training.

Hydra's overrides are those of asr.train. Nothing is written, but for a corpus that is not there yet and can be made.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from asr.cli.table import lay_out
from asr.text.numbers import counted, percent
from asr.text.printable import listed, printable
from asr.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from asr.data.batch_plan import BatchBounds
    from asr.data.epoch_plan import BatchSize, EpochPlan
    from asr.data.training_set import TrainingSet
    from asr.data.utterances import Utterances
    from asr.run.settings import RunSettings


def plan(settings: "RunSettings") -> None:
    """Print the plan of the first two epochs of a training."""
    import torch

    from asr import build
    from asr.data.corpus import prepare_if_absent, read_corpus
    from asr.data.index_cache import IndexCache
    from asr.data.position import start_of_epoch
    from asr.data.training_set import TrainingSet
    from asr.run.folder import fitted_front_end
    from asr.run.initialization import start_of
    from asr.run.preparation import training_counts
    from asr.storage.session import configure
    from asr.text.normalize import get_normalizer

    configure(settings.data.storage)
    prepare_if_absent(settings.corpus)
    torch.manual_seed(settings.seed)
    cache = IndexCache(settings.data.index_dir)
    corpus = read_corpus(settings.corpus, get_normalizer(settings.components["normalizer"]), cache.utterances)
    corpus.check_shards()
    corpus.check_audio()
    tokenizer, features = fitted_front_end(settings, corpus, False, start_of(settings.init))
    model = build.build_model(settings.components, tokenizer, features)
    counts = training_counts(settings, corpus, model)
    augmentation = build.build_augmentation(settings.components, features.sample_rate)
    of_plan = augmentation.speed, settings.seed, settings.data.plan, augmentation.max_added_seconds
    training_set = TrainingSet(corpus.train, features, model.reference, *of_plan, counts)
    if settings.debug.same_utterances:
        corpus = corpus.only(training_set.utterances)
    processes, why = settings.trainer.num_processes()
    plans = [training_set.epoch(start_of_epoch(epoch, processes)) for epoch in (0, 1)]
    print(f"{printable(settings.corpus.name)}: {_selection(training_set)}")
    print(f"{processes} {'process' if processes == 1 else 'processes'}: {why}")
    print()
    bounds = settings.trainer.bounds
    print("\n".join(lay_out(_table(plans, bounds.accumulate, training_set.mixture.is_plain))))
    print()
    steps = training_set.total_steps(start_of_epoch(0, processes), 0, bounds)
    print(f"the whole run: {steps} optimizer steps: {bounds}")
    print(f"validation: {_validation(corpus.valid, training_set.settings.batches, processes)}")


def _selection(training_set: "TrainingSet") -> str:
    """Say how many utterances there are to train on, and which were dropped, why."""
    hours = training_set.utterances.hours
    lines = [f"{len(training_set)} of {training_set.num_given} training utterances, {hours:.2f} h"]
    for reason, dropped in training_set.dropped.items():
        lines.append(printable(f"  dropped {len(dropped)}: {reason} ({listed(dropped.ids)})"))
    if not training_set.dropped:
        lines.append("  dropped none")
    return "\n".join([*lines, *map(printable, training_set.describe_mixture())])


def _table(plans: "Sequence[EpochPlan]", accumulate: int, each_once: bool) -> list[list[str]]:
    """Put the plans side by side, a row for each of their figures, the name of which comes first."""
    from asr.data.batch_plan import changed_mates

    columns = [_figures(plan, accumulate) for plan in plans]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    if not each_once:  # epochs of a mixture do not have the same utterances
        return rows
    changes = [changed_mates(before.plan, after.plan) for before, after in pairwise(plans)]
    return [*rows, ["batch-mates that are others than before", "", *map(percent, changes)]]


def _figures(plan: "EpochPlan", accumulate: int) -> dict[str, str]:
    summary, sizes = plan.summary(), plan.plan.sizes().flatten()
    updates = math.ceil(len(plan) / accumulate)
    return {
        "": f"epoch {plan.epoch + 1}",
        "optimizer steps": f"{updates}",
        "batches of each process": f"{summary.steps}",
        "batches of all": f"{summary.batches}",
        "utterances": f"{summary.utterances}",
        "  that keep speed 1.0, as they must": f"{plan.kept_speed}",
        "hours, as played": f"{summary.hours:.2f}",
        "audio in an optimizer step, mean": f"{summary.hours * 3600 / updates:.1f} s",
        "padding": percent(summary.padding, 2),
        "shortest batch, with padding": _size(summary.shortest),
        "longest batch, with padding": _size(summary.longest),
        "utterances in a batch": f"{sizes.min()} to {sizes.max()}, median {sizes.median()}",
    }


def _size(batch: "BatchSize") -> str:
    return f"{batch.padded_seconds:.2f} s, {counted(batch.utterances, 'utterance')}"


def _validation(utterances: "Utterances", bounds: "BatchBounds", processes: int) -> str:
    """Say in how many batches the validation set is seen."""
    from asr.data.batch_plan import plan_evaluation

    seconds = utterances.durations.tolist()
    batches = plan_evaluation(seconds, bounds, rank=0, world_size=1)
    most = len(plan_evaluation(seconds, bounds, rank=0, world_size=processes))
    padded = sum(len(batch) * max(seconds[index] for index in batch) for batch in batches if batch)
    hours, padding = sum(seconds) / 3600, 1 - sum(seconds) / padded
    counts = f"{len(seconds)} utterances, {hours:.2f} h, in {len(batches)} batches"
    return f"{counts}, at most {most} of each process; padding {percent(padding, 2)}"


main = experiment_command(plan)

if __name__ == "__main__":
    main()
