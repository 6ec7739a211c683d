"""What every augmentation must do: it is a function of its seed, leaves its input unchanged, and keeps its lengths."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import soundfile
import torch
from torch import Tensor

from asr.apps.check.network import SAMPLE_RATE
from asr.base.system.seeds import seeded
from asr.core.build import build_augmentation
from asr.errors import InputError

NUM_SAMPLES = (1, 401, 24_321)
SEEDS = tuple(range(20))  # enough for an augmentation that changes one utterance in four


def check_augmentation(settings: Mapping[str, Any]) -> None:
    """Check an augmentation of any stage; if it mixes recordings, these are noise."""
    with TemporaryDirectory() as folder:
        for name in ("a.wav", "b.wav"):
            soundfile.write(Path(folder, name), 0.1 * torch.randn(SAMPLE_RATE).numpy(), SAMPLE_RATE)
        given = {key: folder if key == "recordings" else value for key, value in settings.items() if key != "name"}
        augmentation = build_augmentation({"augment": {settings["name"]: given}}, SAMPLE_RATE)
        for augment in augmentation.waveform:
            check_waveforms(augment)
        for mask in augmentation.features:
            check_draws(mask, torch.rand(300, 80) + 1)
            _check_length(len(mask(torch.zeros(0, 80))), 0, 0)
        if (speed := augmentation.speed) is not None:
            for factor in speed.factors:
                for num_samples in NUM_SAMPLES:
                    length = int(speed.num_samples(num_samples, factor))
                    _check_length(len(speed(torch.zeros(num_samples), factor)), length, length)


def check_waveforms(augment: Any) -> None:
    """Check an augmentation of waveforms."""
    check_draws(augment, 0.1 * torch.randn(2 * SAMPLE_RATE))
    for num_samples in NUM_SAMPLES:
        most = num_samples + round(augment.max_added_seconds * SAMPLE_RATE)
        for waveform in (0.1 * torch.randn(num_samples), torch.zeros(num_samples), torch.ones(num_samples)):
            for seed in SEEDS[:3]:
                with seeded(seed):
                    out = augment(waveform)
                _check_length(len(out), num_samples, most)
                if out.dtype != torch.float32 or not out.isfinite().all():
                    raise InputError("the waveform must be finite float32; it is not.")


def check_draws(augment: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Check that the result is a function of the seed, differs between some seeds, and is not written into `x`."""
    before, outs = x.clone(), []
    for seed in (*SEEDS, SEEDS[0]):
        with seeded(seed):
            outs.append(augment(x))
    if not torch.equal(x, before):
        raise InputError("the input must not change; clone it before writing into it.")
    if not torch.equal(outs[0], outs[-1]):
        raise InputError("the result must be a function of the seed: draw all numbers from torch's CPU generator.")
    if all(torch.equal(out, outs[0]) for out in outs):
        raise InputError(f"the result must depend on the seed; it is the same for {len(SEEDS)} seeds.")


def _check_length(length: int, least: int, most: int) -> None:
    if not least <= length <= most:
        must = "the length must be as declared (max_added_seconds, num_samples), and at least that of the input"
        raise InputError(f"{must}, {least} to {most}; got {length}.")
