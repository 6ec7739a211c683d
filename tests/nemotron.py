"""Common parts of the tests of NemotronAsrStreaming: a tiny model with random weights, as transformers saves it."""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import NemotronAsrStreamingConfig, NemotronAsrStreamingForRNNT, NemotronAsrStreamingProcessor
from transformers.models.nemotron_asr_streaming.configuration_nemotron_asr_streaming import (
    NemotronAsrStreamingEncoderConfig,
)
from transformers.models.nemotron_asr_streaming.feature_extraction_nemotron_asr_streaming import (
    NemotronAsrStreamingFeatureExtractor,
)
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import NemotronAsrStreamingEncoder

from tests import parakeet
from tests.nemo import vocabulary

LEFT, LOOK_AHEADS = 12, [3, 0, 1, 5]  # encoder frames; the first look-ahead is the default
ENCODER = parakeet.ENCODER | {
    "sliding_window": LEFT + 1,
    "default_num_lookahead_tokens": LOOK_AHEADS[0],
    "attention_bias": False,
    "convolution_bias": False,
}


def encoder(**options: Any) -> NemotronAsrStreamingEncoder:
    """Return the tiny encoder in float32; its eager attention returns NaN, so that it uses sdpa."""
    config = NemotronAsrStreamingEncoderConfig(**ENCODER | options, attn_implementation="sdpa")
    return parakeet.randomized(NemotronAsrStreamingEncoder(config))  # type: ignore[no-any-return]


@cache
def _saved() -> Path:
    folder, blank = Path(tempfile.mkdtemp()), len(vocabulary())
    sizes = {"vocab_size": blank + 1, "blank_token_id": blank, "decoder_hidden_size": 12, "num_decoder_layers": 2}
    config = NemotronAsrStreamingConfig(**sizes, encoder_config=ENCODER, attn_implementation="sdpa")
    made = parakeet.randomized(NemotronAsrStreamingForRNNT(config))
    with torch.no_grad():
        made.joint.head.weight.mul_(3.0)
        made.joint.head.bias[blank] += 3.0
    made.generation_config.decoder_start_token_id = blank
    made.save_pretrained(folder)
    sizes = {"feature_size": parakeet.MELS, "sampling_rate": parakeet.SAMPLE_RATE, "hop_length": 80, "n_fft": 256}
    extractor = NemotronAsrStreamingFeatureExtractor(**sizes, win_length=200)
    tokenizer = parakeet.tokenizer()
    processor = NemotronAsrStreamingProcessor(
        extractor, tokenizer, blank_token="<pad>", supported_num_lookahead_tokens=LOOK_AHEADS
    )
    processor.save_pretrained(folder)
    return folder


def save(folder: Path) -> Path:
    """Save the tiny model into a new folder."""
    shutil.copytree(_saved(), folder)
    return folder
