"""python -m asr.train [overrides]: train a recogniser, write its bundle, and report its WER on the test manifests."""

import logging
from functools import partial
from typing import TYPE_CHECKING

from asr.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from asr.run.settings import RunSettings

logger = logging.getLogger("asr.train")


def train(settings: "RunSettings") -> float | None:
    """Run one training, from the corpus to results.json.

    Returns:
        The lowest WER of the stored checkpoints, which a sweep minimises; None without a validation.
    """
    import lightning.pytorch as pl
    import torch

    from asr import build
    from asr.data.selection import check_dropped
    from asr.data.training_set import TrainingSet
    from asr.report.training import leave_report
    from asr.run.outcome import best_wer, check_learnt, finish
    from asr.run.preparation import prepare, training_counts
    from asr.storage.session import configure
    from asr.training.callbacks import besides_steps
    from asr.training.data_module import SpeechData
    from asr.training.distributed import first_then_all
    from asr.training.fit import fit
    from asr.training.gradient_checkpointing import recompute_blocks
    from asr.training.sharding import shard_in_fit
    from asr.training.task import RecognitionTask, Unreadable
    from asr.training.trainer import equip, make_trainer

    configure(settings.data.storage)
    trainer = make_trainer(settings)
    prepared = first_then_all(trainer, partial(prepare, settings, trainer.global_rank, trainer.world_size))
    settings = prepared.settings
    state, corpus, features, seed = prepared.state, prepared.corpus, prepared.features, settings.seed

    torch.set_num_threads(settings.num_threads)
    pl.seed_everything(seed, verbose=False)
    recognizer = build.build_recognizer(settings.components, prepared.tokenizer, features, prepared.labels)
    model = recognizer.model
    own_tensors = prepared.initialize(model)
    if settings.gradient_checkpointing:
        recompute_blocks(model.encoder)
    counts = training_counts(settings, corpus, model)

    augmentation = prepared.augmentation
    of_plan = augmentation.speed, seed, settings.data.plan, augmentation.max_added_seconds
    training_set = TrainingSet(corpus.train, features, model.reference, *of_plan, counts)
    check_dropped(training_set.dropped, training_set.num_given, settings.data.max_dropped_fraction)
    if settings.debug.same_utterances:
        corpus = corpus.only(training_set.utterances)
    prepared.describe(model, corpus, training_set)
    loading = settings.data.num_workers, settings.data.features_on
    data = SpeechData(training_set, corpus.valid, augmentation, state.position, *loading)
    run = state.run(training_set.total_steps, settings.trainer.bounds)
    logger.info("%d steps: %s", run.total_steps, settings.trainer.bounds)
    task = RecognitionTask(
        recognizer,
        make_optimizer=partial(build.build_optimizer, settings.components),
        schedule=build.build_schedule(settings.components),
        total_steps=run.total_steps,
        seed=seed,
        unreadable=Unreadable(
            settings.data.max_bad_fraction * len(training_set), state.position.epoch, state.position.skipped
        ),
        extra=prepared.extra,
        faults=prepared.faults,
        waiting=data.waiting,
        samples=prepared.validation_samples(corpus.valid),
        epoch_hours=training_set.epoch_hours,
        valid_manifests=corpus.valid.manifests,
        metrics=build.build_metrics(settings.components),
        own_tensors=own_tensors,
    )
    shard_in_fit(trainer, task, model.encoder.blocks, ["losses"])
    others = besides_steps(trainer, settings, prepared, task, data)
    stop = equip(trainer, settings, state, run, data, task.measure, others)
    early_end = fit(trainer, task, data, state, stop, settings.trainer, run.total_steps)

    if trainer.is_global_zero:
        device = trainer.strategy.root_device
        valid_words = sum(len(text.split()) for text in corpus.valid.texts)
        results = finish(state.run_dir, settings, corpus.all_tests, device, prepared.start, valid_words)
        leave_report(state.run_dir)
        if settings.debug.max_wer is not None:
            check_learnt(results, settings.debug.max_wer)
        if early_end is not None:
            logger.info(early_end)
    return best_wer(state.run_dir)


main = experiment_command(train)

if __name__ == "__main__":
    main()
