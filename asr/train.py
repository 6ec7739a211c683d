"""python -m asr.train [overrides]: train a recogniser, write its bundle, and report its WER on the test manifests."""

from typing import TYPE_CHECKING

from asr.core.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from asr.core.run.settings import TrainingSettings


def train(settings: "TrainingSettings") -> float | None:
    """Run one training, from the corpus to results.json; return the lowest WER, which a sweep minimises."""
    from asr.core.cli.apps import of_app
    from asr.core.training.run import run_training

    of_doctor = (of_app("doctor.memory", name) for name in ("find_batch_seconds", "try_largest"))
    return run_training(settings, of_app("report.training", "leave_report"), *of_doctor)


main = experiment_command(train)

if __name__ == "__main__":
    main()
