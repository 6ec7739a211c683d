"""A training by asr.train."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from asr.core.checkpoint.load import load_recognizer
from asr.core.data.dataset import load_utterance
from asr.core.data.manifest import Utterance
from asr.core.recognition.recognizer import Recognizer
from asr.core.run.settings import RunSettings
from asr.core.training import run
from asr.train import train
from benchmarks.time_to_wer.lightning_watch import Watched
from benchmarks.time_to_wer.watch import Transcribe, Watch


def fit(settings: RunSettings, watch: Watch) -> tuple[int, Transcribe]:
    """Train; return the number of parameters, and the transcription by the bundle."""
    fit = run.fit

    def watched(trainer: Any, task: Any, *others: Any) -> str | None:
        trainer.callbacks.append(Watched(task.total_steps, transcriber(task.trainable.recognizer), watch))
        return fit(trainer, task, *others)

    with patch.object(run, "fit", watched):
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
