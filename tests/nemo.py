"""Common parts of the tests of NVIDIA NeMo's models: a trained model, if present, and NeMo's output."""

import io
import math
import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import soundfile
import torch
import yaml
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from tests.conftest import ROOT, SHARED

MODEL = ROOT.parent / "shared" / "models" / "stt_en_conformer_ctc_small"
AUDIO = {  # the utterances in golden.npz
    "1089-134686-0001": "test-clean-mini/1089/134686",
    "1089-134691-0000": "test-clean-mini/1089/134691",
    "2414-128291-0001": "test-other-mini/2414/128291",
}
needs_model = pytest.mark.skipif(
    not (MODEL.is_dir() and SHARED.is_dir()),
    reason="../shared/models or ../shared/data (a trained model, real speech) is missing",
)


def audio(utterance: str) -> Tensor:
    """Return an utterance's waveform, (S,)."""
    samples, _ = soundfile.read(SHARED / "LibriSpeech" / AUDIO[utterance] / f"{utterance}.flac", dtype="float32")
    return torch.from_numpy(samples)


def golden(utterance: str, name: str) -> np.ndarray:
    """Return an output of NeMo 3.0.0 for an utterance: its features (T, F), or its logprobs (T', V)."""
    with np.load(MODEL / "golden.npz") as arrays:
        array: np.ndarray = arrays[f"{utterance}/{name}"]
    return array


# A tiny Conformer-CTC with random weights; its tensors have NeMo's names and shapes.
DIM, LAYERS, HEADS, CHANNELS, KERNEL, MELS, FACTOR = 16, 2, 4, 6, 5, 20, 2
SAMPLE_RATE, WINDOW, FFT_POINTS = 8000, 200, 256


@cache
def sentencepiece_model(num_pieces: int = 40, bos_id: int = -1, tags: tuple[str, ...] = ()) -> bytes:
    """Return a tokenizer as NeMo's recipe trains it: the unknown piece is first, and no control pieces follow.

    A `bos_id` of 0 or more adds the control piece <s>; tags are user-defined pieces.
    """
    model = io.BytesIO()
    texts = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type="bpe",
        vocab_size=num_pieces,
        character_coverage=1.0,
        bos_id=bos_id,
        eos_id=-1,
        user_defined_symbols=list(tags),
        minloglevel=2,
    )
    return model.getvalue()


def sentencepiece_model_of(pieces: list[str]) -> bytes:
    """Return a BPE tokenizer with these pieces; pieces between < and > are user-defined symbols."""
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.BPE
    for number, name in enumerate(pieces):
        kind = model.SentencePiece.USER_DEFINED if name[0] == "<" and name[-1] == ">" else model.SentencePiece.NORMAL
        model.pieces.add(piece=name, score=-number, type=kind if number else model.SentencePiece.UNKNOWN)
    return bytes(model.SerializeToString())


def vocabulary() -> list[str]:
    """Return the pieces of `sentencepiece_model`."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model())
    return [processor.id_to_piece(number) for number in range(processor.vocab_size())]


def nemo_config(pieces: list[str] | None = None) -> dict[str, Any]:
    """Return the config of the tiny model in NeMo's form."""
    pieces = vocabulary() if pieces is None else pieces
    return {
        "target": "nemo.collections.asr.models.ctc_bpe_models.EncDecCTCModelBPE",
        "sample_rate": SAMPLE_RATE,
        "nemo_version": "1.23.0",
        "tokenizer": {"dir": "/somewhere", "type": "bpe", "model_path": "nemo:0123_tokenizer.model"},
        "preprocessor": {
            "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor",
            "sample_rate": SAMPLE_RATE,
            "window_size": 0.025,
            "window_stride": 0.01,
            "features": MELS,
            "n_fft": FFT_POINTS,
            "dither": 1e-5,
            "pad_to": 0,
        },
        "encoder": {
            "_target_": "nemo.collections.asr.modules.ConformerEncoder",
            "feat_in": MELS,
            "n_layers": LAYERS,
            "d_model": DIM,
            "subsampling_conv_channels": CHANNELS,
            "ff_expansion_factor": FACTOR,
            "n_heads": HEADS,
            "conv_kernel_size": KERNEL,
            "dropout": 0.1,
        },
        "decoder": {
            "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
            "feat_in": DIM,
            "num_classes": len(pieces),
            "vocabulary": pieces,
        },
    }


LEFT, LOOK_AHEADS = 12, [3, 0, 1, 5]  # contexts of a causal encoder; the first look-ahead is the default
CAUSAL = {  # encoder settings of a causal Fast Conformer; its preprocessor has NA_FEATURES
    "causal_downsampling": True,
    "att_context_size": [[LEFT, look_ahead] for look_ahead in LOOK_AHEADS],
    "att_context_style": "chunked_limited",
    "conv_norm_type": "layer_norm",
    "conv_context_size": "causal",
}
NA_FEATURES = {"normalize": "NA"}
FAST = {"subsampling": "dw_striding", "subsampling_factor": 8, "use_bias": False}  # encoder settings of Fast Conformer


def shapes(num_classes: int, head: str = "decoder", is_fast: bool = False) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tiny model's tensors, except counters and the tensors of the preprocessor.

    Args:
        num_classes: outputs without the blank.
        head: prefix of the names of the head's tensors.
        is_fast: whether the encoder has the settings `FAST`.
    """
    named: dict[str, tuple[int, ...]] = {}

    def linear(name: str, *shape: int, bias: bool = True) -> None:
        named[f"{name}.weight"] = shape
        if bias:
            named[f"{name}.bias"] = shape[:1]

    linear("encoder.pre_encode.conv.0", CHANNELS, 1, 3, 3)
    linear("encoder.pre_encode.conv.2", CHANNELS, 1 if is_fast else CHANNELS, 3, 3)
    if is_fast:
        linear("encoder.pre_encode.conv.3", CHANNELS, CHANNELS, 1, 1)
        linear("encoder.pre_encode.conv.5", CHANNELS, 1, 3, 3)
        linear("encoder.pre_encode.conv.6", CHANNELS, CHANNELS, 1, 1)
    linear("encoder.pre_encode.out", DIM, CHANNELS * math.ceil(MELS / (8 if is_fast else 4)))
    for number in range(LAYERS):
        layer = f"encoder.layers.{number}"
        for name in ("feed_forward1", "feed_forward2"):
            linear(f"{layer}.{name}.linear1", FACTOR * DIM, DIM, bias=not is_fast)
            linear(f"{layer}.{name}.linear2", DIM, FACTOR * DIM, bias=not is_fast)
        for name in ("feed_forward1", "self_att", "conv", "feed_forward2", "out"):
            linear(f"{layer}.norm_{name}", DIM)
        for name in ("linear_q", "linear_k", "linear_v", "linear_out"):
            linear(f"{layer}.self_attn.{name}", DIM, DIM, bias=not is_fast)
        linear(f"{layer}.self_attn.linear_pos", DIM, DIM, bias=False)
        for name in ("u", "v"):
            named[f"{layer}.self_attn.pos_bias_{name}"] = (HEADS, DIM // HEADS)
        linear(f"{layer}.conv.pointwise_conv1", 2 * DIM, DIM, 1, bias=not is_fast)
        linear(f"{layer}.conv.depthwise_conv", DIM, 1, KERNEL, bias=not is_fast)
        linear(f"{layer}.conv.pointwise_conv2", DIM, DIM, 1, bias=not is_fast)
        linear(f"{layer}.conv.batch_norm", DIM)
        for name in ("running_mean", "running_var"):
            named[f"{layer}.conv.batch_norm.{name}"] = (DIM,)
    linear(f"{head}.decoder_layers.0", num_classes + 1, DIM, 1)
    return named


def tensors(num_classes: int | None = None, head: str = "decoder", is_fast: bool = False) -> dict[str, Tensor]:
    """Return the tiny model's tensors, including the counters of its batch norms."""
    generator = torch.Generator().manual_seed(0)
    num_classes = len(vocabulary()) if num_classes is None else num_classes
    made = {
        name: 0.1 + torch.rand(shape, generator=generator) / max(1, sum(shape)) ** 0.5
        for name, shape in shapes(num_classes, head, is_fast).items()
    }
    counters = {f"encoder.layers.{number}.conv.batch_norm.num_batches_tracked" for number in range(LAYERS)}
    return made | {name: torch.tensor(7) for name in sorted(counters)}


def saved(state: Any) -> bytes:
    """Return a state dict in the format of `torch.save`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def nemo_files(config: dict[str, Any] | None = None, state: Any = None) -> dict[str, bytes]:
    """Return the files of the tiny model's archive by name."""
    return {
        "model_config.yaml": yaml.safe_dump(nemo_config() if config is None else config, allow_unicode=True).encode(),
        "model_weights.ckpt": saved(tensors() if state is None else state),
        "0123_tokenizer.model": sentencepiece_model(),
        "4567_vocab.txt": "\n".join(vocabulary()).encode(),
    }


def member(name: str, content: bytes = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a member of a tar file, with these attributes of its header changed."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in attributes.items():
        setattr(info, key, value)
    return info, content


def write_tar(path: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], mode: str = "w") -> Path:
    """Write a tar file of these members."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))
    return path


def as_nemo_3(files: dict[str, bytes]) -> list[tuple[tarfile.TarInfo, bytes]]:
    """Return these files as members of an archive of NeMo 3: the folder `./`, and each file below it."""
    return [member("./", type=tarfile.DIRTYPE), *(member(f"./{name}", content) for name, content in files.items())]
