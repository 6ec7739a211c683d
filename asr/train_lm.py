"""python -m asr.train_lm [overrides]: train a neural language model over a recogniser's tokens; report its perplexity.

It begins, logs, validates, saves and resumes like asr.train. docs/guide/language-models.md shows how a search uses it.
"""

from typing import TYPE_CHECKING

from asr.core.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from asr.core.run.settings import TrainingSettings


def train_lm(settings: "TrainingSettings") -> float | None:
    """Run one training, from the texts to results.json; return the lowest perplexity, which a sweep minimises."""
    from asr.core.cli.apps import of_app
    from asr.core.training.run import run_training

    of_doctor = (of_app("doctor.memory", name) for name in ("find_batch_seconds", "try_largest"))
    return run_training(settings, of_app("report.training", "leave_report"), *of_doctor)


main = experiment_command(train_lm, "train_lm")

if __name__ == "__main__":
    main()
