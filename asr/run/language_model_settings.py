"""The settings of a language model's training: conf/train_lm.yaml with its overrides, read once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from asr.build import check_token_model
from asr.data.text_set import TextSettings
from asr.run.settings import (
    CheckpointSettings,
    EarlyStoppingSettings,
    EmaSettings,
    ResumeSettings,
    TrainerSettings,
    check_sections,
)
from asr.settings.plugins import NAMES
from asr.settings.read import REST, read
from asr.settings.rule import PATH, TEXT, THREADS, whole

COMPONENTS = ("token_model", "optimizer", "schedule")


@dataclass(frozen=True)
class LanguageModelSettings:
    """All settings of a run.

    Args:
        text: section.
        components: the sections of the components, by name; only asr.build reads them.
        plugins: packages outside of asr that contain components.
        recognizer: recogniser whose normaliser and tokenizer convert the texts to tokens.
        seed: seed of all random numbers.
        run_dir: folder of the run.
        num_threads: number of threads of the training process on a CPU.
        checkpoint: section.
        resume: section.
        ema: section.
        early_stopping: section.
        trainer: section.
    """

    text: TextSettings
    components: Annotated[Mapping[str, Any], REST]
    plugins: Annotated[list[str], NAMES]
    recognizer: Annotated[str, TEXT]
    seed: Annotated[int, whole(0, 2**32 - 1)]
    run_dir: Annotated[str, PATH]
    num_threads: Annotated[int, THREADS]
    checkpoint: CheckpointSettings
    resume: ResumeSettings
    ema: EmaSettings
    early_stopping: EarlyStoppingSettings
    trainer: TrainerSettings

    def __post_init__(self) -> None:
        check_sections("conf/train_lm.yaml", self.components, COMPONENTS, ["logger"])


def read_language_model_settings(resolved: Mapping[str, Any], overrides: Sequence[str] = ()) -> LanguageModelSettings:
    """Read and check the resolved config of a run.

    Raises:
        InputError: a setting is absent, unknown or invalid; the message names the first such setting.
    """
    settings = read(LanguageModelSettings, resolved)
    check_token_model(settings.components)
    return settings
