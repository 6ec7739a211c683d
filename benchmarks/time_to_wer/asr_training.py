"""A training by asr.train."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl

from asr.checkpoint.load import load_recognizer
from asr.data.dataset import load_utterance
from asr.data.manifest import Utterance
from asr.recognition.recognizer import Recognizer
from asr.run.settings import RunSettings
from asr.train import train
from asr.training import callbacks
from benchmarks.time_to_wer.watch import Transcribe, Watch


class Watched(pl.callbacks.Callback):
    """Evaluate in training; the validations of asr.train itself, in which it also writes checkpoints, do not count."""

    def __init__(self, recognizer: Recognizer, num_steps: int, watch: Watch) -> None:
        self._transcribe, self._num_steps, self._watch = transcriber(recognizer), num_steps, watch
        self._validation: Any = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock."""
        self._watch.begin(self._num_steps)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *rest: Any) -> None:
        """Evaluate the model if it is time to."""
        pl_module.eval()
        self._watch.step(trainer.global_step, self._transcribe)
        pl_module.train()

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Stop the clock."""
        self._validation = self._watch.paused()
        self._validation.__enter__()

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Go on."""
        self._validation.__exit__(None, None, None)


def fit(settings: RunSettings, watch: Watch) -> tuple[int, Transcribe]:
    """Train; return the number of parameters, and the transcription by the bundle."""
    besides_steps = callbacks.besides_steps

    def watched(trainer: pl.Trainer, settings: RunSettings, prepared: Any, task: Any, data: Any) -> list[pl.Callback]:
        others = besides_steps(trainer, settings, prepared, task, data)
        return [*others, Watched(task._recognizer, task.total_steps, watch)]

    with patch.object(callbacks, "besides_steps", watched):
        train(settings)
    recognizer = load_recognizer(Path(settings.run_dir))
    return sum(weight.numel() for weight in recognizer.model.parameters()), transcriber(recognizer)


def transcriber(recognizer: Recognizer) -> Transcribe:
    """Return the transcription of utterances."""
    sample_rate = recognizer.model.features.sample_rate

    def transcribe(utterances: Sequence[Utterance]) -> list[str]:
        waveforms = [load_utterance(utterance, sample_rate) for utterance in utterances]
        return [transcript.text for transcript in recognizer.transcribe(waveforms, sample_rate=sample_rate)]

    return transcribe
