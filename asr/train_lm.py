"""python -m asr.train_lm [overrides]: train a neural language model over a recogniser's tokens; report its perplexity.

It begins, logs, validates, saves and resumes like asr.train. docs/guide/language-models.md shows how a search uses it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from asr.core.training.hydra_command import experiment_command

if TYPE_CHECKING:
    from asr.core.objective.language_model import LanguageModelSettings


def train_lm(settings: "LanguageModelSettings") -> float | None:
    """Run one training, from the texts to results.json.

    Returns:
        The lowest perplexity per word of the stored checkpoints, which a sweep minimises.
    """
    from asr.core.cli.apps import of_app
    from asr.core.training.callbacks import text_callbacks
    from asr.core.training.data_module import TextData
    from asr.core.training.run import run_training

    def make_data(settings: "LanguageModelSettings", source: Any, position: Any) -> TextData:
        return TextData(source.train, source.valid, settings.text.bounds, position)

    callbacks = partial(text_callbacks, try_largest=of_app("doctor.memory", "try_largest"))
    return run_training(settings, make_data, callbacks, of_app("report.training", "leave_report")).score


def read_config(resolved: Mapping[str, Any], overrides: Sequence[str] = ()) -> "LanguageModelSettings":
    """Read and check the settings of conf/train_lm.yaml."""
    from asr.base.settings.read import read
    from asr.core.build import build_objective
    from asr.core.objective.language_model import LanguageModelSettings

    settings = read(LanguageModelSettings, resolved)
    build_objective(settings.components).check(settings.components)
    return settings


main = experiment_command(train_lm, "train_lm", read_config)

if __name__ == "__main__":
    main()
