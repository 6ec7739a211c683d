"""A training by NVIDIA NeMo, with Lightning's Trainer."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from nemo.collections.asr.models import EncDecCTCModel
from nemo.utils import logging
from omegaconf import OmegaConf
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from asr.components.head.ctc_intermediate import CTCIntermediate
from asr.core.data.waveforms import WaveformBatch
from benchmarks.time_to_wer.lightning_watch import Watched
from benchmarks.time_to_wer.peer import Job, num_parameters, optimizer_of_asr, transcriber
from benchmarks.time_to_wer.watch import Transcribe, Watch

# examples/asr/conf/conformer/conformer_ctc_char.yaml, at NVIDIA/NeMo 02aa226
PUBLISHED_BATCH = 16
PUBLISHED_DROPOUT = 0.1
PUBLISHED_OPTIMIZER = {
    "name": "adamw",
    "lr": 2.0,
    "betas": [0.9, 0.98],
    "weight_decay": 1e-3,
    "sched": {"name": "NoamAnnealing", "warmup_steps": 10_000, "warmup_ratio": None, "min_lr": 1e-6},
}
PUBLISHED_MASKS = {"freq_masks": 2, "time_masks": 10, "freq_width": 27, "time_width": 0.05}
NEMO = "nemo.collections.asr.modules"


def config(job: Job) -> dict[str, Any]:
    """Return the model's config: the published one with asr's sizes, and with the job's settings if it has any."""
    shape, settings = job.shape, job.settings
    dropout = PUBLISHED_DROPOUT if job.is_published else shape.dropout
    optimizer, schedule = (settings.components[name] for name in ("optimizer", "schedule"))
    asr_optimizer = {
        "name": "adamw",
        "lr": optimizer["lr"],
        "betas": list(optimizer["betas"]),
        "eps": optimizer["eps"],
        "weight_decay": optimizer["weight_decay"],
        "sched": {
            "name": "CosineAnnealing",
            "warmup_steps": schedule["warmup_steps"],
            "min_lr": optimizer["lr"] * schedule["final_factor"],
        },
    }
    published_optimizer = PUBLISHED_OPTIMIZER | {"sched": {**PUBLISHED_OPTIMIZER["sched"], "d_model": shape.dim}}  # type: ignore[dict-item]
    head = job.speech.model.head
    interctc: dict[str, Any] = {"loss_weights": [], "apply_at_layers": []}
    if not job.is_published and isinstance(head, CTCIntermediate):
        interctc = {"loss_weights": [head.weight], "apply_at_layers": head.tapped}
    return {
        "sample_rate": job.speech.features.sample_rate,
        "labels": job.characters,
        "log_prediction": False,
        "ctc_reduction": "mean_batch",
        "preprocessor": {
            "_target_": f"{NEMO}.AudioToMelSpectrogramPreprocessor",
            "normalize": "per_feature",
            "window": "hann",
            "sample_rate": job.speech.features.sample_rate,
            "window_size": 0.025,
            "window_stride": 0.01,
            "features": 80,
            "n_fft": 512,
            "log": True,
            "frame_splicing": 1,
            "dither": 1e-5,
            "pad_to": 0,
        },
        "encoder": {
            "_target_": f"{NEMO}.ConformerEncoder",
            "feat_in": 80,
            "n_layers": shape.num_layers,
            "d_model": shape.dim,
            "n_heads": shape.num_heads,
            "conv_kernel_size": shape.kernel_size,
            "subsampling": "striding",
            "subsampling_factor": 4,
            "subsampling_conv_channels": shape.num_channels,
            "ff_expansion_factor": shape.feed_forward_dim // shape.dim,
            "self_attention_model": "rel_pos",
            **dict.fromkeys(("dropout", "dropout_pre_encoder", "dropout_att"), dropout),
            "dropout_emb": 0.0,
        },
        "decoder": {
            "_target_": f"{NEMO}.ConvASRDecoder",
            "feat_in": shape.dim,
            "vocabulary": job.characters,
            "num_classes": len(job.characters),
        },
        "interctc": interctc,
        "optim": published_optimizer if job.is_published else asr_optimizer,
        **(
            {"spec_augment": {"_target_": f"{NEMO}.SpectrogramAugmentation"} | PUBLISHED_MASKS}
            if job.is_published
            else {}
        ),
    }


def fit(job: Job, watch: Watch) -> tuple[int, Transcribe]:
    """Train; return the number of parameters, and the transcription by the last weights."""
    logging.set_verbosity(logging.ERROR)
    pl.seed_everything(job.settings.seed, verbose=False)
    return trained(job, watch, lambda trainer: EncDecCTCModel(OmegaConf.create(config(job)), trainer=trainer))


def trained(job: Job, watch: Watch, make: Callable[[pl.Trainer], Any]) -> tuple[int, Transcribe]:
    """Train the model that `make` returns for a trainer; returns the same as `fit`."""
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=len(job.batches),
        max_epochs=1,
        log_every_n_steps=10,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        # Its loss is a sum over the tokens of an utterance, so that asr's limit would clip each step.
        gradient_clip_val=0.0,
    )
    model = make(trainer)
    if job.has_optimizer_of_asr:
        model._optimizer, schedule = optimizer_of_asr(job, model)  # its training step reads the learning rate from it
        scheduler = {"scheduler": schedule, "interval": "step"}
        model.configure_optimizers = lambda: {"optimizer": model._optimizer, "lr_scheduler": scheduler}

    def frames(waveforms: list[Tensor]) -> list[Tensor]:
        lengths = torch.tensor([len(waveform) for waveform in waveforms])
        _, counts, tokens = model(input_signal=pad_sequence(waveforms, batch_first=True), input_signal_length=lengths)
        return [row[:count] for row, count in zip(tokens, counts.tolist(), strict=True)]

    def collate(batch: WaveformBatch) -> tuple[Tensor, ...]:
        return batch.waveforms, batch.sample_counts, batch.rest.tokens - 1, batch.rest.token_lengths

    transcribe = transcriber(job.characters, job.speech.features.sample_rate, frames)
    trainer.callbacks.append(Watched(len(job.batches), transcribe, watch))  # type: ignore[attr-defined]
    trainer.fit(model, job.loader(collate))
    model.eval()
    return num_parameters(model), transcribe
