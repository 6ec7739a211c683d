"""Common parts of the tests of NemotronAsrStreaming: a tiny model with random weights, as transformers saves it."""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Nemotron3_5AsrConfig,
    Nemotron3_5AsrForRNNT,
    Nemotron3_5AsrProcessor,
    NemotronAsrStreamingConfig,
    NemotronAsrStreamingForRNNT,
    NemotronAsrStreamingProcessor,
)
from transformers.models.nemotron_asr_streaming.configuration_nemotron_asr_streaming import (
    NemotronAsrStreamingEncoderConfig,
)
from transformers.models.nemotron_asr_streaming.feature_extraction_nemotron_asr_streaming import (
    NemotronAsrStreamingFeatureExtractor,
)
from transformers.models.nemotron_asr_streaming.modeling_nemotron_asr_streaming import NemotronAsrStreamingEncoder

from tests import parakeet
from tests.nemo import LEFT, LOOK_AHEADS, vocabulary

# Numbers of languages in a prompt; asr gives "auto" the last number.
LANGUAGES, NUM_PROMPTS = {"en": 0, "en-US": 0, "de-DE": 1, "de": 1, "fr-FR": 3, "auto": 5}, 6
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
def _saved(has_prompt: bool) -> Path:
    folder, blank = Path(tempfile.mkdtemp()), len(vocabulary())
    sizes = {"vocab_size": blank + 1, "blank_token_id": blank, "decoder_hidden_size": 12, "num_decoder_layers": 2}
    languages = {"prompt_dictionary": LANGUAGES, "num_prompts": NUM_PROMPTS} if has_prompt else {}
    settings = {"encoder_config": ENCODER, "attn_implementation": "sdpa"}
    if has_prompt:
        prompt = {"num_prompts": NUM_PROMPTS, "prompt_intermediate_size": 24, "default_prompt_id": LANGUAGES["auto"]}
        made = parakeet.randomized(Nemotron3_5AsrForRNNT(Nemotron3_5AsrConfig(**sizes, **settings, **prompt)))
    else:
        made = parakeet.randomized(NemotronAsrStreamingForRNNT(NemotronAsrStreamingConfig(**sizes, **settings)))
    with torch.no_grad():
        made.joint.head.weight.mul_(3.0)
        made.joint.head.bias[blank] += 3.0
    made.generation_config.decoder_start_token_id = blank
    made.save_pretrained(folder)
    sizes = {"feature_size": parakeet.MELS, "sampling_rate": parakeet.SAMPLE_RATE, "hop_length": 80, "n_fft": 256}
    extractor = NemotronAsrStreamingFeatureExtractor(**sizes, win_length=200)
    tokenizer = parakeet.tokenizer()
    processor_class = Nemotron3_5AsrProcessor if has_prompt else NemotronAsrStreamingProcessor
    processor = processor_class(
        extractor, tokenizer, blank_token="<pad>", supported_num_lookahead_tokens=LOOK_AHEADS, **languages
    )
    processor.save_pretrained(folder)
    return folder


def save(folder: Path, has_prompt: bool = False) -> Path:
    """Save the tiny model into a new folder; a prompt makes it a Nemotron 3.5."""
    shutil.copytree(_saved(has_prompt), folder)
    return folder
