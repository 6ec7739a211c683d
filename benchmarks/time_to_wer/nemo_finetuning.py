"""Fine-tuning by NVIDIA NeMo as its script does it, with asr's bundle converted to NeMo's archive.

examples/asr/speech_to_text_finetune.py and its config, at NVIDIA/NeMo 4924ebf, except for the warm-up: its 5,000 steps
would be longer than the training, so it is 5 % of the training, as in asr.
"""

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from nemo.collections.asr.models import ASRModel
from nemo.utils import logging
from omegaconf import OmegaConf

from asr import convert
from benchmarks.time_to_wer.nemo_training import NEMO, PUBLISHED_MASKS, trained
from benchmarks.time_to_wer.peer import Job
from benchmarks.time_to_wer.watch import Transcribe, Watch

PUBLISHED_BATCH = 16
WARMUP_FRACTION = 0.05
PUBLISHED_OPTIMIZER = {"name": "adamw", "lr": 1e-4, "betas": [0.9, 0.98], "weight_decay": 1e-3}
SCHEDULE = {"name": "CosineAnnealing", "min_lr": 5e-6}


def fit(job: Job, watch: Watch) -> tuple[int, Transcribe]:
    """Fine-tune; return the number of parameters, and the transcription by the last weights."""
    logging.set_verbosity(logging.ERROR)
    pl.seed_everything(job.settings.seed, verbose=False)
    archive = Path(job.settings.run_dir, "initial.nemo")
    archive.parent.mkdir(parents=True, exist_ok=True)
    convert.main([str(job.settings.init.source), "--to", "nemo", "-o", str(archive)])

    def make(trainer: pl.Trainer) -> Any:
        model = ASRModel.restore_from(str(archive), map_location="cpu", trainer=trainer)
        masks = OmegaConf.create({"_target_": f"{NEMO}.SpectrogramAugmentation"} | PUBLISHED_MASKS)
        model.spec_augmentation = model.from_config_dict(masks)
        schedule = SCHEDULE | {"warmup_steps": round(WARMUP_FRACTION * len(job.batches)), "max_steps": len(job.batches)}
        model.setup_optimization(OmegaConf.create(PUBLISHED_OPTIMIZER | {"sched": schedule}))
        return model

    return trained(job, watch, make)
