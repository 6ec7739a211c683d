"""python -m asr.train_lm [overrides]: train a neural language model over a recogniser's tokens; report its perplexity.

It begins, logs, validates, saves and resumes like asr.train. docs/guide/language-models.md shows how a search uses it.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from asr.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from asr.run.language_model_settings import LanguageModelSettings

logger = logging.getLogger("asr.train_lm")


def train_lm(settings: "LanguageModelSettings") -> float:
    """Run one training, from the texts to results.json.

    Returns:
        The perplexity per word of the validation texts, which a sweep minimises.
    """
    import torch

    from asr import build
    from asr.report.training import leave_report
    from asr.run.language_model import finish_language_model, prepare_text
    from asr.training.callbacks import besides_text_steps
    from asr.training.distributed import first_then_all
    from asr.training.fit import fit
    from asr.training.sharding import shard_in_fit
    from asr.training.text_task import LanguageModelTask, TextData
    from asr.training.trainer import equip, make_trainer

    trainer = make_trainer(settings)
    prepared = first_then_all(trainer, partial(prepare_text, settings, trainer.global_rank, trainer.world_size))
    torch.set_num_threads(settings.num_threads)
    torch.manual_seed(settings.seed)
    state, components, tokenizer = prepared.state, settings.components, prepared.tokenizer
    model: Any = build.build_token_model(components["token_model"], tokenizer.vocab_size)
    prepared.describe(model, sum(parameter.numel() for parameter in model.parameters()))
    run = state.run(prepared.train.total_steps, settings.trainer.bounds)
    logger.info("%d steps: %s", run.total_steps, settings.trainer.bounds)
    task = LanguageModelTask(
        model,
        make_optimizer=partial(build.build_optimizer, components),
        schedule=build.build_schedule(components),
        total_steps=run.total_steps,
        seed=settings.seed,
        extra=prepared.extra,
    )
    data = TextData(prepared.train, prepared.valid, settings.text.bounds, state.position)
    shard_in_fit(trainer, task, (), ["losses"])
    others = besides_text_steps(trainer, settings, data.worst_batches)
    stop = equip(trainer, settings, state, run, data, task.measure, others)
    early_end = fit(trainer, task, data, state, stop, settings.trainer, run.total_steps)
    if not trainer.is_global_zero:
        return float("nan")
    results = finish_language_model(settings, prepared, trainer.strategy.root_device)
    leave_report(state.run_dir)
    if early_end is not None:
        logger.info(early_end)
    return results["valid"].per_word


def read_config(resolved: Mapping[str, Any], overrides: Sequence[str]) -> "LanguageModelSettings":
    """Read and check the settings of conf/train_lm.yaml.

    Raises:
        InputError: a setting is invalid.
    """
    from asr.run.language_model_settings import read_language_model_settings

    return read_language_model_settings(resolved)


main = experiment_command(train_lm, "train_lm", read_config)

if __name__ == "__main__":
    main()
