"""A training by Hugging Face transformers: Parakeet-CTC with the Trainer."""

import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from asr.core.data.waveforms import WaveformBatch
from benchmarks.time_to_wer.peer import Job, num_parameters, optimizer_of_asr, transcriber
from benchmarks.time_to_wer.watch import Transcribe, Watch

# examples/pytorch/speech-recognition/README.md, "Single GPU CTC", at huggingface/transformers 02f6103
PUBLISHED_BATCH = 16
PUBLISHED = {
    "learning_rate": 3e-4,
    "warmup_steps": 500,
    "gradient_accumulation_steps": 2,
    "lr_scheduler_type": "linear",
}


class Watched(TrainerCallback):
    """Evaluate in training."""

    def __init__(self, transcribe: Transcribe, watch: Watch) -> None:
        self._transcribe, self._watch = transcribe, watch

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Start the clock."""
        self._watch.begin(state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **rest: Any) -> None:
        """Evaluate the model if it is time to."""
        model.eval()
        self._watch.step(state.global_step, self._transcribe)
        model.train()


class PlannedTrainer(Trainer):
    """A Trainer with a given loader."""

    def __init__(self, loader: DataLoader[Any], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._loader = loader

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Return the loader."""
        return self._loader


def make_model(job: Job) -> ParakeetForCTC:
    """Make the model; unless the recipe is the published one, with torch's initialisation and asr's dropout."""
    shape, blank = job.shape, len(job.characters)
    encoder = {
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "intermediate_size": shape.feed_forward_dim,
        "conv_kernel_size": shape.kernel_size,
        "num_mel_bins": 80,
        "subsampling_factor": 4,
        "subsampling_conv_channels": shape.num_channels,
        "layerdrop": 0.0,
    }
    if not job.is_published:
        encoder |= dict.fromkeys(("dropout", "activation_dropout", "attention_dropout"), shape.dropout)
    config = ParakeetCTCConfig(
        vocab_size=blank + 1,
        pad_token_id=blank,
        encoder_config=encoder,
        ctc_loss_reduction="mean",
        ctc_zero_infinity=True,
    )
    model = ParakeetForCTC(config)
    if not job.is_published:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
                module.reset_parameters()
    return model


def arguments(job: Job, folder: str) -> TrainingArguments:
    """Return the Trainer's arguments: the published ones, or those of the job's settings."""
    optimizer, schedule = (job.settings.components[name] for name in ("optimizer", "schedule"))
    of_settings = {
        "learning_rate": optimizer["lr"],
        "warmup_steps": schedule["warmup_steps"],
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": schedule["final_factor"]},
        "adam_beta1": optimizer["betas"][0],
        "adam_beta2": optimizer["betas"][1],
        "adam_epsilon": optimizer["eps"],
        "weight_decay": optimizer["weight_decay"],
        "max_grad_norm": job.settings.trainer.gradient_clip_val,
    }
    chosen: dict[str, Any] = PUBLISHED if job.is_published else of_settings
    return TrainingArguments(
        output_dir=folder,
        num_train_epochs=1,
        use_cpu=True,
        seed=job.settings.seed,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        **chosen,
    )


def fit(job: Job, watch: Watch) -> tuple[int, Transcribe]:
    """Train; return the number of parameters, and the transcription by the last weights."""
    set_seed(job.settings.seed)
    model = make_model(job)
    blank, sample_rate = len(job.characters), job.speech.features.sample_rate
    extractor = ParakeetFeatureExtractor(feature_size=80, sampling_rate=sample_rate)

    def features(waveforms: list[Tensor]) -> dict[str, Any]:
        arrays = [waveform.numpy() for waveform in waveforms]
        made = extractor(arrays, sampling_rate=sample_rate, return_tensors="pt")
        return {"input_features": made["input_features"], "attention_mask": made["attention_mask"]}

    def frames(waveforms: list[Tensor]) -> list[Tensor]:
        return list(model.generate(**features(waveforms)))  # padding is blank

    def collate(batch: WaveformBatch) -> dict[str, Tensor]:
        rows = zip(batch.waveforms, batch.sample_counts.tolist(), strict=True)
        tokens, lengths = batch.rest.tokens, batch.rest.token_lengths
        is_padding = torch.arange(tokens.shape[1]) >= lengths[:, None]
        labels = (tokens - 1).masked_fill(is_padding, blank)
        return features([waveform[:count] for waveform, count in rows]) | {"labels": labels}

    transcribe = transcriber(job.characters, sample_rate, frames)
    with tempfile.TemporaryDirectory() as folder:
        trainer = PlannedTrainer(
            job.loader(collate),
            model=model,
            args=arguments(job, folder),
            optimizers=optimizer_of_asr(job, model) if job.has_optimizer_of_asr else (None, None),
            callbacks=[Watched(transcribe, watch)],
        )
        trainer.train()
    model.eval()
    return num_parameters(model), transcribe
