"""The published configs, tokenizers and tensor shapes of 0.6 billion parameters, with random values.

Each test needs 8 GB of memory and 8 GB of disk.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer
from transformers import Nemotron3_5AsrForRNNT, ParakeetFeatureExtractor, ParakeetForTDT
from transformers.models.nemotron_asr_streaming.feature_extraction_nemotron_asr_streaming import (
    NemotronAsrStreamingFeatureExtractor,
)

from asr.apps.convert.huggingface.tokenizer import give_vocabulary
from asr.apps.convert.nemo.tokenizer import take_vocabulary
from asr.convert import main
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.latency import set_latency
from tests.test_nemo_transducers import PUBLISHED
from tests.test_parakeet import sound

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PUBLISHED.is_dir(), reason="../shared/models/published (real configs) is missing"),
]
RATE = 16_000
FEATURES = {"feature_size": 128, "sampling_rate": RATE, "hop_length": 160, "n_fft": 512, "win_length": 400}


def published(name: str, folder: Path) -> Path:
    """Write a folder of transformers with the published files, and random tensors of the published names and shapes."""
    shutil.copytree(PUBLISHED / name, folder)
    header = json.loads((folder / "safetensors_header.json").read_text())
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for key, entry in header.items():
        shape = entry.get("shape", [])
        if key == "__metadata__":
            continue
        if entry["dtype"] == "I64":
            tensors[key] = torch.tensor(7)
        elif key.endswith("running_var"):
            tensors[key] = torch.ones(shape)
        else:
            tensors[key] = torch.randn(shape, generator=draw) / shape[-1] ** 0.5
    tensors["decoder.embedding.weight"][-1] = 0.0  # the blank's row, as in models that NeMo trained
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def decoded(folder: Path, tokens: list[int], blank: int) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = [token for token in tokens if token != blank]
    return " ".join(tokenizer.decode(ids, skip_special_tokens=False).split())


@torch.no_grad()
def test_parakeet_v3_gives_the_text_of_transformers(tmp_path: Path) -> None:
    folder = published("parakeet-tdt-0.6b-v3", tmp_path / "theirs")
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    waveform = sound(4.0)
    text = load_recognizer(tmp_path / "ours").transcribe(waveform, sample_rate=RATE).text
    model: Any = ParakeetForTDT.from_pretrained(folder, attn_implementation="sdpa").eval()
    inputs = ParakeetFeatureExtractor(**FEATURES)(waveform.numpy(), sampling_rate=RATE, return_tensors="pt")
    tokens = model.generate(**inputs).sequences[0].tolist()
    assert text == decoded(folder, tokens, 8192) != ""


@torch.no_grad()
def test_nemotron_gives_the_texts_of_transformers_in_two_languages_and_at_two_latencies(tmp_path: Path) -> None:
    folder = published("nemotron-3.5-asr-streaming-0.6b", tmp_path / "theirs")
    content = (folder / "tokenizer.model").read_bytes()
    vocabulary = take_vocabulary({"tokenizer": {"type": "bpe"}}, {}, {"tokenizer.model": content}, folder)
    (folder / "tokenizer.json").write_bytes(give_vocabulary(vocabulary.config, vocabulary.files).content)
    assert main([str(folder), "-o", str(tmp_path / "ours")]) == 0
    recognizer, waveform = load_recognizer(tmp_path / "ours"), sound(4.0)
    model: Any = Nemotron3_5AsrForRNNT.from_pretrained(folder, attn_implementation="sdpa").eval()
    inputs = NemotronAsrStreamingFeatureExtractor(**FEATURES)(waveform.numpy(), sampling_rate=RATE, return_tensors="pt")
    for language, number, look_ahead in (("auto", 101, 3), ("de-DE", 9, 3), ("auto", 101, 13)):
        set_latency(recognizer.model, 0.08 * (look_ahead + 1), "latency")
        text = recognizer.transcribe(waveform, sample_rate=RATE, language=language).text
        prompt = torch.tensor([number])
        tokens = model.generate(**inputs, num_lookahead_tokens=look_ahead, prompt_ids=prompt).sequences[0].tolist()
        expected = decoded(folder, tokens, 13_087)
        # With random values each frame has the maximum of ten tokens, and transformers leaves out the last one.
        assert len(expected) > 100
        assert text[: len(expected)] == expected
