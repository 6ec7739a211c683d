"""What tests of NVIDIA NeMo's models share: a trained one that may lie beside the checkout, with NeMo's output."""

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from tests.conftest import ROOT, SHARED

MODEL = ROOT.parent / "shared" / "models" / "stt_en_conformer_ctc_small"
AUDIO = {  # of the utterances in golden.npz
    "1089-134686-0001": "test-clean-mini/1089/134686",
    "1089-134691-0000": "test-clean-mini/1089/134691",
    "2414-128291-0001": "test-other-mini/2414/128291",
}
needs_model = pytest.mark.skipif(
    not (MODEL.is_dir() and SHARED.is_dir()), reason="../shared/models and ../shared/data, real speech, are not here"
)


def audio(utterance: str) -> Tensor:
    """An utterance's waveform, (S,)."""
    samples, _ = soundfile.read(SHARED / "LibriSpeech" / AUDIO[utterance] / f"{utterance}.flac", dtype="float32")
    return torch.from_numpy(samples)


def golden(utterance: str, what: str) -> np.ndarray:
    """What NeMo 3.0.0 computed of an utterance: its features (T, F), or its logprobs (T', V)."""
    with np.load(MODEL / "golden.npz") as arrays:
        array: np.ndarray = arrays[f"{utterance}/{what}"]
    return array
