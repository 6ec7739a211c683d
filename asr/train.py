"""python -m asr.train [overrides]: train a recogniser, write its bundle, and report its WER on the test manifests."""

from functools import partial
from typing import TYPE_CHECKING, Any

from asr.core.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from asr.core.run.settings import RunSettings


def train(settings: "RunSettings") -> float | None:
    """Run one training, from the corpus to results.json.

    Returns:
        The lowest WER of the stored checkpoints, which a sweep minimises; None without a validation.
    """
    from asr.core.cli.apps import of_app
    from asr.core.run.outcome import check_learnt
    from asr.core.training.callbacks import speech_callbacks
    from asr.core.training.data_module import SpeechData
    from asr.core.training.run import run_training

    def make_data(settings: "RunSettings", source: Any, position: Any) -> SpeechData:
        loading = settings.num_workers, settings.data.features_on
        return SpeechData(source.train, source.corpus.valid, source.augmentation, position, *loading)

    callbacks = partial(speech_callbacks, try_largest=of_app("doctor.memory", "try_largest"))
    of_apps = of_app("report.training", "leave_report"), of_app("doctor.memory", "find_batch_seconds")
    outcome = run_training(settings, make_data, callbacks, *of_apps)
    if outcome.results and settings.debug.max_wer is not None:
        check_learnt(outcome.results, settings.debug.max_wer)
    return outcome.score


main = experiment_command(train)

if __name__ == "__main__":
    main()
