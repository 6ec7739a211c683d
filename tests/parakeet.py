"""Common parts of the tests of Hugging Face's Parakeet-CTC: a tiny model, made and saved by transformers."""

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken
from transformers import (
    ParakeetCTCConfig,
    ParakeetFeatureExtractor,
    ParakeetForCTC,
    ParakeetForRNNT,
    ParakeetForTDT,
    ParakeetRNNTConfig,
    ParakeetTDTConfig,
    ParakeetTokenizer,
)
from transformers.convert_slow_tokenizer import ParakeetConverter
from transformers.models.parakeet.configuration_parakeet import ParakeetEncoderConfig
from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder

from tests.nemo import sentencepiece_model, vocabulary

SAMPLE_RATE, MELS = 8000, 24
ENCODER = {
    "hidden_size": 16,  # the input scale is its square root, 4; folding a power of 2 into weights is exact
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "conv_kernel_size": 5,
    "subsampling_conv_channels": 6,
    "num_mel_bins": MELS,
}


@torch.no_grad()
def randomized(model: torch.nn.Module, seed: int = 0) -> Any:
    """Change every parameter and running statistic, so that none has its initial value and all frames differ."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith("running_var"):
            tensor.copy_(0.5 + noise.abs())
        elif tensor.dim() > 1:
            tensor.copy_(1.5 * noise / tensor[0].numel() ** 0.5)
        elif tensor.is_floating_point():
            tensor += 0.1 * noise
    return model.eval()


def encoder(**options: Any) -> ParakeetEncoder:
    """Return the tiny encoder in float32."""
    # eager attention would compute the softmax in float32
    config = ParakeetEncoderConfig(**ENCODER, **options, attn_implementation="sdpa")
    return randomized(ParakeetEncoder(config))


def tokenizer_without_blank() -> ParakeetTokenizer:
    """Return a SentencePiece tokenizer as transformers converts it, without a blank."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "tokenizer.model").write_bytes(sentencepiece_model())
        converted = ParakeetConverter(f"{place}/tokenizer.model").converted()
    return ParakeetTokenizer(tokenizer_object=converted, clean_up_tokenization_spaces=False)


def tokenizer() -> ParakeetTokenizer:
    """Return `tokenizer_without_blank` with the blank appended."""
    made = tokenizer_without_blank()
    special = {name: AddedToken(name, normalized=False, special=True) for name in ("<pad>", "<unk>")}
    made.add_tokens([special["<pad>"]])
    made.add_special_tokens({"pad_token": special["<pad>"], "unk_token": special["<unk>"]})
    return made


def feature_extractor(**changes: Any) -> ParakeetFeatureExtractor:
    """Return the feature extractor of the tiny model."""
    sizes = {"feature_size": MELS, "sampling_rate": SAMPLE_RATE, "hop_length": 80, "n_fft": 256, "win_length": 200}
    return ParakeetFeatureExtractor(**sizes | changes)


@cache
def _saved(options: tuple[tuple[str, Any], ...]) -> Path:
    folder = Path(tempfile.mkdtemp())
    blank = len(vocabulary())
    config = ParakeetCTCConfig(vocab_size=blank + 1, pad_token_id=blank, encoder_config={**ENCODER, **dict(options)})
    randomized(ParakeetForCTC(config)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    feature_extractor().save_pretrained(folder)
    return folder


@cache
def _saved_transducer(kind: str, options: tuple[tuple[str, Any], ...], has_blank: bool) -> Path:
    folder = Path(tempfile.mkdtemp())
    blank = len(vocabulary())
    made_by, model = {
        "rnnt": (ParakeetRNNTConfig, ParakeetForRNNT),
        "tdt": (ParakeetTDTConfig, ParakeetForTDT),
    }[kind]
    sizes = {"vocab_size": blank + 1, "blank_token_id": blank, "pad_token_id": 2, "decoder_hidden_size": 12}
    config = made_by(**sizes | dict(options), num_decoder_layers=2, encoder_config=ENCODER)
    made = randomized(model(config))
    with torch.no_grad():
        made.joint.head.weight.mul_(3.0)
        made.joint.head.bias[blank] += 3.0
        # transformers takes one maximum over the logits of tokens and durations. Subtracting a constant excludes the
        # durations from it, and does not change which duration is best.
        made.joint.head.bias[blank + 1 :] -= 1000.0
        # Duration 0 is made rare, because the greedy TDT search of transformers does not limit the tokens per frame.
        made.joint.head.bias[blank + 1 : blank + 2] -= 4.0
    made.generation_config.decoder_start_token_id = blank  # the published models have this value
    made.save_pretrained(folder)
    (tokenizer() if has_blank else tokenizer_without_blank()).save_pretrained(folder)
    feature_extractor().save_pretrained(folder)
    return folder


def save_transducer(folder: Path, kind: str, has_blank: bool = True, **options: Any) -> Path:
    """Save a tiny Parakeet-RNNT or TDT, as transformers does.

    Args:
        folder: output folder.
        kind: "rnnt" or "tdt".
        has_blank: whether the blank is a piece of the tokenizer.
        options: options of the config.
    """
    shutil.copytree(_saved_transducer(kind, tuple(sorted(options.items())), has_blank), folder)
    return folder


def save(folder: Path, **options: Any) -> Path:
    """Save the tiny model with these options of its encoder, as transformers does."""
    shutil.copytree(_saved(tuple(sorted(options.items()))), folder)
    return folder


DAMAGES = ("gone", "empty", "half", "a list")


def damage(file: Path, how: str) -> None:
    """Remove a file, or replace its content."""
    content = file.read_bytes()
    file.unlink()
    if how != "gone":
        file.write_bytes({"empty": b"", "half": content[: len(content) // 2], "a list": b"[1]"}[how])


def change(path: Path, **settings: Any) -> None:
    """Change settings of a JSON file; `section__key` names a setting in a section."""
    config = json.loads(path.read_text())
    for key, value in settings.items():
        section, _, inner = key.rpartition("__")
        (config[section] if section else config)[inner] = value
    path.write_text(json.dumps(config))
