"""CTC models exported for sherpa-onnx as Zipformers: equal features, and in sherpa-onnx itself the texts of asr."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from torch import Tensor, nn

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

import onnx

from asr.apps.export.program import BATCH, write_down
from asr.apps.export.programs import why_not_for_sherpa
from asr.apps.export.sherpa_ctc import ZIPFORMER_INPUTS
from asr.apps.export.sherpa_layouts import unlike_sherpa
from asr.apps.export.sherpa_stateless import StatelessDecoder
from asr.base.settings.conf import default_settings
from asr.convert import main as convert
from asr.core.build import build_features
from asr.core.checkpoint.bundle import read_bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import read_manifest
from asr.export import main as export
from tests.conftest import STACKS, TINY, resolved, settings_with, tone_corpus
from tests.test_export_transducers import sound, texts_of, transducer_bundle
from tests.test_icefall import HEADS, checkpoint, subwords, vocabulary
from tests.test_onnx import amplify, follow, tiny_bundle
from tests.tones import sentences, write_corpus

BY_SHERPA = """
import os, sys, sherpa_onnx, soundfile

folder, method, *recordings = sys.argv[1:]
parts = {name: f"{folder}/{name}-sherpa.onnx" for name in ("encoder", "decoder", "joiner")}
tokens = f"{folder}/tokens.txt"
if os.path.exists(parts["encoder"]):
    model = sherpa_onnx.OfflineRecognizer.from_transducer(**parts, tokens=tokens, decoding_method=method)
else:
    model = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(model=f"{folder}/model-sherpa.onnx", tokens=tokens)
streams = [model.create_stream() for _ in recordings]
for stream, recording in zip(streams, recordings):
    waveform, sample_rate = soundfile.read(recording, dtype="float32")
    stream.accept_waveform(sample_rate, waveform)
model.decode_streams(streams)
for stream in streams:
    print(*stream.result.tokens, sep="\t") if {tokens} else print(stream.result.text)
"""


def by_sherpa(folder: Path, paths: list[str], tokens: bool = False, method: str = "greedy_search") -> list[str]:
    """Return the texts of sherpa-onnx, or its tokens, for recordings in one batch.

    It runs in a separate process, because its errors crash the process.
    """
    command = [sys.executable, "-c", BY_SHERPA.replace("{tokens}", str(tokens)), str(folder), method, *paths]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def recordings(folder: Path, sample_rate: int = 16_000) -> list[str]:
    """Write recordings of several lengths, as floats."""
    for number, seconds in enumerate((3.0, 1.2, 2.1, 0.4)):
        waveform = sound(seconds * sample_rate / 16_000, number)
        soundfile.write(folder / f"{number}.wav", waveform.numpy(), sample_rate, subtype="FLOAT")
    return [str(path) for path in sorted(folder.glob("*.wav"))]


STATELESS = ["encoder=conformer_xs", "encoder.block.convolution.kernel_size=7", "features=mirrored_fbank"]
STATELESS += ["head=transducer", "head/predictor=stateless", "head.predictor.dim=12"]


# ---- features

STEP, LOWEST, HIGHEST = 1e-3, -17.0, 7.0  # resolution and range of energies that tokens represent


class Levels(nn.Module):
    """A program whose tokens are the energies that it is given, in steps of STEP; a blank follows each token."""

    def forward(self, energies: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Map energies (B, T, F) to scores (B, 2 T F, V), in which the nearest level has the highest."""
        levels = torch.arange(LOWEST, HIGHEST, STEP)
        scores = -(energies.flatten(1)[..., None] - levels).abs()  # (B, T F, V - 1)
        scores = nn.functional.pad(scores, (1, 0), value=-1e3)
        blank = nn.functional.one_hot(torch.tensor(0), len(levels) + 1).float().expand_as(scores)
        return torch.stack([scores, blank], dim=2).flatten(1, 2), 2 * energies.shape[2] * lengths


@pytest.mark.parametrize("num_samples", [81, 479, 800])
def test_sherpa_onnx_computes_the_energies_of_mirrored_fbank(num_samples: int, tmp_path: Path) -> None:
    """The last frames of these recordings are mirrored; the quiet half of the last one is at the floor."""
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    example, names = (torch.randn(2, 5, 80), torch.tensor([5, 3])), (ZIPFORMER_INPUTS, ("log_probs", "lengths"))
    program = write_down(Levels(), example, names, (BATCH | {1: "frames"}, BATCH))
    onnx.save(program, tmp_path / "model-sherpa.onnx")
    count = round((HIGHEST - LOWEST) / STEP)
    (tmp_path / "tokens.txt").write_text("<blk> 0\n" + "".join(f"{number} {number + 1}\n" for number in range(count)))
    waveform = 0.1 * torch.randn(num_samples, generator=torch.Generator().manual_seed(num_samples))
    waveform[400:] *= 1e-5
    soundfile.write(tmp_path / "recording.wav", waveform.numpy(), 16_000, subtype="FLOAT")
    [line] = by_sherpa(tmp_path, [str(tmp_path / "recording.wav")], tokens=True)
    theirs = LOWEST + STEP * torch.tensor([float(token) for token in line.split("\t")])
    expected = build_features({"features": default_settings("features", "mirrored_fbank")}).energies(waveform)
    assert len(expected) == (num_samples + 80) // 160
    torch.testing.assert_close(theirs.view(-1, 80), expected, rtol=0, atol=1e-3)


def test_a_model_needs_the_features_that_sherpa_onnx_computes() -> None:
    def unlike(*overrides: str, is_transducer: bool = False) -> list[str]:
        features: dict[str, Any] = resolved(*overrides)["features"]
        return [setting.split("=")[0] for setting in unlike_sherpa(features, is_transducer)]

    for is_transducer in (False, True):
        assert unlike("features=slaney_fbank", is_transducer=is_transducer) == []
        normalize, rate = "features/normalize=per_utterance", "features.sample_rate=8000"
        others = unlike("features=slaney_fbank", normalize, rate, is_transducer=is_transducer)
        assert others == ["features.sample_rate", "features/normalize"]
        more = unlike("features=slaney_fbank", "features.num_mel_bins=128", is_transducer=is_transducer)
        assert (more == []) is is_transducer
    assert unlike("features=mirrored_fbank", is_transducer=True) == []
    for free in ("features/normalize=loud_frame_cmvn", "features.sample_rate=8000", "features.num_mel_bins=64"):
        assert unlike("features=mirrored_fbank", free) == []
    kaldis = ["features.snip_edges=true", "features.high_hertz=0", "features.full_scale=32768"]
    assert unlike("features=mirrored_fbank", *kaldis) == [setting.split("=")[0] for setting in kaldis]


def test_an_encoder_of_another_stride_is_left_out_because_its_times_would_be_wrong(tmp_path: Path) -> None:
    bundle = tiny_bundle(tmp_path, "encoder=fast_conformer_s", "encoder.dim=16", "features=mirrored_fbank")
    reason = why_not_for_sherpa(load_recognizer(bundle), read_bundle(bundle).config)
    assert all(word in reason for word in ("stride", "4", "8", "slaney_fbank"))


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (["head=transducer", "head/predictor=lstm"], ["stateless"]),
        (["head=tdt", "head/predictor=stateless"], ["durations"]),
        (["head=transducer", "encoder=fast_conformer_s"], ["stride", "4", "8"]),
    ],
)
def test_a_transducer_without_a_counterpart_is_left_out_with_the_reason(
    chosen: list[str], named: list[str], tmp_path: Path
) -> None:
    bundle = transducer_bundle(tmp_path / "bundle", *STATELESS, *chosen)
    reason = why_not_for_sherpa(load_recognizer(bundle), read_bundle(bundle).config)
    assert all(word in reason for word in (*named, "slaney_fbank"))


@pytest.mark.parametrize("predictor", ["stateless", "stateless_conv"])
@pytest.mark.parametrize("num_tokens", [1, 2, 4])
@torch.no_grad()
def test_the_decoder_takes_the_last_tokens_and_no_token_before_the_first(
    num_tokens: int, predictor: str, tmp_path: Path
) -> None:
    chosen = [*STATELESS, f"head/predictor={predictor}", f"head.predictor.num_tokens={num_tokens}"]
    head: Any = load_recognizer(transducer_bundle(tmp_path / "bundle", *chosen)).model.head
    tokens = torch.tensor([[3, 1, 4, 1, 5], [5, 2, 2, 3, 1]])
    expected = head.joiner.of_tokens(head.predictor(tokens))  # (2, 6, J)
    history = torch.cat([torch.full((2, num_tokens - 1), -1), torch.zeros(2, 1, dtype=torch.int64), tokens], dim=1)
    for number in range(6):
        out = StatelessDecoder(head)(history[:, number : number + num_tokens])
        torch.testing.assert_close(out, expected[:, number], rtol=0, atol=1e-5)


# ---- models


SILENT = [1, 2]  # tokens <unk> and <sos/eos>, which are no text


def amplify_joiner(folder: Path) -> None:
    """Let the joiner of a bundle amplify deviations of frames from their mean, and make blanks as likely as tokens."""
    bundle, model = read_bundle(folder), load_recognizer(folder).model
    features = model.features(sound(3.0, seed=9))[None]
    with torch.no_grad():
        average = model(features, torch.tensor([features.shape[1]])).out[0].mean(dim=0)
    weights = bundle.weights
    weights["head.joiner.of_frames.weight"] *= 8.0
    weights["head.joiner.of_frames.bias"][:] = -weights["head.joiner.of_frames.weight"] @ average
    weights["head.joiner.output.weight"] *= 3.0
    weights["head.joiner.output.bias"][SILENT] = -1e4
    weights["head.joiner.output.bias"][0] += 4.0
    replace_bundle(folder, bundle)


def words(texts: list[str]) -> list[list[str]]:
    """Split texts: sherpa-onnx writes both spaces of a piece that is a space before one that begins with a space."""
    return [text.split() for text in texts]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("head", ["ctc", "transducer"])
def test_sherpa_onnx_writes_the_texts_of_icefalls_zipformer(head: str, tmp_path: Path) -> None:
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    theirs, bundle, exported = tmp_path / "theirs", tmp_path / "bundle", tmp_path / "exported"
    theirs.mkdir()
    (theirs / "bpe.model").write_bytes(subwords())
    torch.save({"model": checkpoint(vocabulary().vocab_size(), HEADS[head])}, theirs / "pretrained.pt")
    assert convert([str(theirs), "-o", str(bundle)]) == 0
    amplify(bundle, SILENT) if head == "ctc" else amplify_joiner(bundle)
    paths = recordings(tmp_path)
    expected = texts_of(bundle, paths)
    assert len(set(expected)) == len(paths)
    assert export([str(bundle), "-o", str(exported)]) == 0
    texts = by_sherpa(exported, paths)
    assert words(texts) == words(expected)
    assert follow(exported, 1, Path(paths[0]), tmp_path) == texts[0]
    program = "model-sherpa.onnx" if head == "ctc" else "encoder-sherpa.onnx"
    [metadata] = onnx.load(exported / program).metadata_props
    assert (metadata.key, metadata.value) == ("model_type", "zipformer2_ctc" if head == "ctc" else "zipformer2")
    if head == "transducer":
        beam = texts_of(bundle, paths, decode="monotonic_beam")
        assert words(by_sherpa(exported, paths, method="modified_beam_search")) == words(beam)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sherpa_onnx_writes_the_texts_of_a_transducer_that_emits_one_token_in_a_frame(tmp_path: Path) -> None:
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    one = ["head.ctc_weight=0", "decode.max_symbols=1"]
    bundle = transducer_bundle(tmp_path / "bundle", *STATELESS, "head.predictor.num_tokens=3", *one)
    paths = recordings(tmp_path)
    expected = texts_of(bundle, paths)
    assert len(set(expected)) == len(paths)
    assert export([str(bundle), "-o", str(tmp_path / "exported")]) == 0
    assert by_sherpa(tmp_path / "exported", paths) == expected
    assert follow(tmp_path / "exported", 1, Path(paths[0]), tmp_path) == expected[0]
    files = {file.name for file in (tmp_path / "exported").iterdir()}
    assert "tokens-sherpa.txt" not in files  # the blank is token 0 in asr and in sherpa-onnx


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_program_in_the_readme_names_the_sample_rate_and_the_mel_bins_of_the_model(tmp_path: Path) -> None:
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    chosen = ["features=mirrored_fbank", "features/normalize=utterance_cmvn", "features.num_mel_bins=40"]
    bundle = tiny_bundle(tmp_path, *chosen, "features.sample_rate=8000")
    paths = recordings(tmp_path, 8_000)
    expected = texts_of(bundle, paths)
    assert export([str(bundle), "-o", str(tmp_path / "exported")]) == 0
    assert [follow(tmp_path / "exported", 1, Path(path), tmp_path) for path in paths] == expected


ZIPFORMER = [
    *("encoder=zipformer_xs", *(f"encoder.{key}={value}" for key, value in STACKS.items()), "head=ctc"),
    *("encoder.dims=[32,32,32]", "encoder.subsampling.channels=[4,8,16]"),
]
TRAINED = {  # the program contains the normalisation, with the statistics of the training set for global_cmvn
    "conformer": [*TINY, "features/normalize=loud_frame_cmvn"],
    "conformer, statistics": [*TINY, "features/normalize=global_cmvn"],
    "transducer": [*TINY, *STATELESS[3:], "head.joint_dim=64", "head.predictor.dim=32", "decode.max_symbols=1"],
    "zipformer": [*(setting for setting in TINY if not setting.startswith("encoder.")), *ZIPFORMER],
}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("chosen", TRAINED.values(), ids=TRAINED)
def test_sherpa_onnx_writes_the_texts_of_a_trained_model_in_float32_and_int8(chosen: list[str], tmp_path: Path) -> None:
    from asr.train import train

    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    write_corpus(tmp_path, {"train": sentences(128, 1), "valid": sentences(8, 2), "test": sentences(20, 3)})
    enough = ["trainer.max_epochs=16", "trainer.check_val_every_n_epoch=16", "optimizer.lr=8e-3"]
    run = tmp_path / "run"
    train(settings_with(*chosen, "features=mirrored_fbank", *tone_corpus(tmp_path), f"run_dir={run}", *enough))
    utterances = read_manifest(tmp_path / "test.jsonl")
    paths = [str(utterance.audio_filepath) for utterance in utterances]
    expected = texts_of(run, paths)
    assert sum(text == utterance.text for text, utterance in zip(expected, utterances, strict=True)) > 15
    for name, options in (("float32", []), ("int8", ["--quantize", "int8"])):
        folder = tmp_path / name
        assert export([str(run), "-o", str(folder), *options]) == 0
        assert texts_of(folder, paths) == expected
        assert by_sherpa(folder, paths) == expected
    [program] = {"model-sherpa.onnx", "encoder-sherpa.onnx"} & {path.name for path in folder.iterdir()}
    sizes = [(tmp_path / name / program).stat().st_size for name in ("int8", "float32")]
    assert sizes[0] < 0.7 * sizes[1]
    if program == "encoder-sherpa.onnx":
        assert by_sherpa(tmp_path / "float32", paths, method="modified_beam_search") == expected
