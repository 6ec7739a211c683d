"""RNNT and TDT exported to ONNX give the same texts in asr, plain Python and sherpa-onnx as in torch."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch
from torch import Tensor

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from asr.apps.export.exported_folder import token_files
from asr.apps.export.sherpa_transducer import SherpaDecoder, SherpaJoiner, has_sherpa_durations, to_sherpa
from asr.components.tokenizer.char import Char
from asr.core.build import build_features, build_model, build_tokenizer, component
from asr.core.checkpoint.bundle import Bundle, replace_bundle
from asr.core.checkpoint.load import load_recognizer, model_config
from asr.core.data.manifest import read_manifest
from asr.export import main as export
from tests import parakeet
from tests.conftest import ROOT, TINY, block_dims, resolved, settings_with, tone_corpus
from tests.test_onnx import follow
from tests.tones import sentences, write_corpus

SMALL = ["encoder=fast_conformer_s", "encoder.dim=16", "encoder.num_layers=2", "encoder.subsampling.num_channels=6"]
TEXTS = ["the quick brown fox jumps over the lazy dog", "pack my box with five dozen liquor jugs"]
LSTM = ["head/predictor=lstm", "head.predictor.num_layers=2", "head.predictor.dim=12"]
KINDS = {  # name to overrides
    "rnnt": ["head=transducer", *LSTM, "head.ctc_weight=0"],
    "tdt that skips": ["head=tdt", *LSTM, "head.ctc_weight=0", "head.durations=[0,1,2,4]"],
    "hybrid tdt, gru, 128 mels": [
        *("head=tdt", "head/predictor=gru", "head.predictor.dim=12", "features.num_mel_bins=128"),
    ],
}


def sound(seconds: float, seed: int) -> Tensor:
    """Return noise and tones whose loudness and spectrum change, so that frames differ."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(round(seconds * 16_000)) / 16_000
    noise = torch.randn(len(time), generator=generator)
    tones = sum((6.2832 * pitch * time).sin() * (9.0 * time + pitch).sin() for pitch in (220, 650, 1800))
    return 0.05 * (5.0 * time).sin().square() * (noise + tones)


def transducer_bundle(folder: Path, *overrides: str, blank: float = 4.0) -> Path:
    """Write a bundle with random weights, scaled so that the transducer emits tokens, blanks and all durations."""
    config = resolved(*SMALL, "features=slaney_fbank", "head.joint_dim=16", *overrides)
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(TEXTS)
    torch.manual_seed(0)
    model = parakeet.randomized(build_model(config, tokenizer, features))
    head: Any = model.head
    joiner = head.joiner
    features_of_sound = features(sound(3.0, seed=9))[None]
    with torch.no_grad():  # frames must differ, and blanks must be as likely as tokens
        average = model(features_of_sound, torch.tensor([features_of_sound.shape[1]])).out[0].mean(dim=0)
        joiner.of_frames.weight.mul_(2.0)
        joiner.of_tokens.weight.mul_(6.0)
        joiner.of_frames.bias.copy_(-joiner.of_frames.weight @ average)
        joiner.output.weight.mul_(3.0)
        joiner.output.bias[0] += blank
        if head_durations := getattr(head, "durations", ()):
            joiner.output.bias[-len(head_durations)] -= 3.0  # sherpa-onnx emits at most 5 tokens in a frame
    replace_bundle(folder, Bundle(model_config(config), tokenizer.files(), model.state_dict(), card=""))
    return folder


BY_SHERPA = """
import sys, sherpa_onnx, soundfile

folder, method, *recordings = sys.argv[1:]
names = {name: f"{folder}/{name}-sherpa.onnx" for name in ("encoder", "decoder", "joiner")}
model = sherpa_onnx.OfflineRecognizer.from_transducer(
    **names, tokens=f"{folder}/tokens-sherpa.txt", model_type="nemo_transducer", decoding_method=method
)
for recording in recordings:
    stream = model.create_stream()
    waveform, sample_rate = soundfile.read(recording, dtype="float32")
    stream.accept_waveform(sample_rate, waveform)
    model.decode_stream(stream)
    print(stream.result.text)
"""


def by_sherpa(folder: Path, paths: list[str], method: str = "greedy_search", place: Path | None = None) -> list[str]:
    """Return the texts of sherpa-onnx; run it in a separate process, because its errors crash the process.

    The working folder is `place`, or this process's.
    """
    command = [sys.executable, "-c", BY_SHERPA, str(folder), method, *paths]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def texts_of(model: Path, paths: list[str], **options: Any) -> list[str]:
    texts = [transcript.text for transcript in load_recognizer(model, **options).transcribe(paths)]
    assert sum(map(len, texts)) > 10, "the texts must not be empty"
    return texts


# ---- fast tests, without export to a file


@pytest.mark.parametrize("predictor", ["lstm", "gru", "stateless", "stateless_conv"])
@pytest.mark.parametrize("head", ["transducer", "tdt"])
@torch.no_grad()
def test_the_decoder_and_joiner_for_sherpa_onnx_equal_ours_but_the_blank_is_last(
    head: str, predictor: str, tmp_path: Path
) -> None:
    overrides = [f"head={head}", f"head/predictor={predictor}", "head.predictor.dim=12"]
    model = load_recognizer(transducer_bundle(tmp_path / "bundle", *overrides)).model
    network, joiner, durations = model.head.predictor, model.head.joiner, model.head.durations
    vocab_size = model.tokenizer.vocab_size
    decoder, join = SherpaDecoder(model.head, vocab_size), SherpaJoiner(model.head, vocab_size)
    states: Any = [torch.zeros_like(tensor) for tensor in to_sherpa(network.initial_state(2))]
    assert states[0].shape == states[1].shape
    tokens = [(0, 0), (3, 5), (vocab_size - 1, 1)]  # token ids of asr, in which the blank is 0
    expected = joiner.of_tokens(network(torch.tensor(tokens[1:]).T))  # (2, 3, J)
    for number, pair in enumerate(tokens):
        theirs = torch.tensor([[(token - 1) % vocab_size] for token in pair], dtype=torch.int32)
        out, _, *states = decoder(theirs, torch.ones(2, dtype=torch.int32), *states)
        torch.testing.assert_close(out[:, :, 0], expected[:, number], rtol=0, atol=1e-5)
        frames = torch.randn(2, out.shape[1], 1)
        log_probs = join(frames, out)[:, 0, 0]
        logits = joiner(frames[:, :, 0], out[:, :, 0])
        order = [*range(1, vocab_size), 0]
        torch.testing.assert_close(log_probs[:, :vocab_size], logits[:, :vocab_size].log_softmax(dim=1)[:, order])
        if durations:
            torch.testing.assert_close(log_probs[:, vocab_size:], logits[:, vocab_size:].log_softmax(dim=1))


def test_durations_that_sherpa_onnx_supports_are_recognised() -> None:
    """sherpa-onnx supports only the durations 0, 1, 2, ...: it uses the index of a logit as the duration."""
    for overrides, expected in (
        (["head=tdt"], True),
        (["head=tdt", "head.durations=[0,1,2,4]"], False),
        (["head=transducer"], True),
    ):
        config = resolved("features=slaney_fbank", *overrides)
        head = component("head", config["head"])(16, block_dims(16), 5)
        assert has_sherpa_durations(head) is expected


def test_the_blank_is_first_in_the_token_file_of_asr_and_last_in_that_of_sherpa_onnx() -> None:
    tokenizer = Char()
    tokenizer.fit([" a"])
    files = token_files(tokenizer, {"encoder-sherpa.onnx"}, blank_last=True)
    assert files == {"tokens.txt": "<blk> 0\n▁ 1\na 2\n", "tokens-sherpa.txt": "▁ 0\na 1\n<blk> 2\n"}
    assert token_files(tokenizer, {"model.onnx"}, blank_last=True).keys() == {"tokens.txt"}
    assert token_files(tokenizer, {"encoder-sherpa.onnx"}, blank_last=False).keys() == {"tokens.txt"}


# ---- slow tests, in which each export takes at least 15 s


@pytest.fixture(scope="module", params=[pytest.param(name, marks=pytest.mark.slow) for name in KINDS])
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle of a transducer, the exported bundle, and three recordings."""
    folder = tmp_path_factory.mktemp("transducer")
    bundle = transducer_bundle(folder / "bundle", *KINDS[request.param])
    assert export([str(bundle), "-o", str(folder / "exported")]) == 0
    for number, seconds in enumerate((3.0, 1.2, 2.1)):
        soundfile.write(folder / f"{number}.wav", sound(seconds, number).numpy(), 16_000, subtype="FLOAT")
    return folder


@pytest.mark.timeout(900)
def test_the_exported_folder_is_a_model_that_writes_the_same_texts(exported: Path) -> None:
    paths = [str(path) for path in sorted(exported.glob("*.wav"))]
    assert texts_of(exported / "exported", paths) == texts_of(exported / "bundle", paths)


@pytest.mark.timeout(900)
def test_the_loop_in_the_readme_writes_the_same_text(exported: Path, tmp_path: Path) -> None:
    recording = str(exported / "0.wav")
    [expected] = texts_of(exported / "bundle", [recording])
    assert follow(exported / "exported", 0, Path(recording), tmp_path) == expected


@pytest.mark.timeout(900)
def test_a_duration_that_sherpa_onnx_does_not_support_is_named_in_the_readme(exported: Path) -> None:
    card = (exported / "exported" / "README.md").read_text()
    if "[0, 1, 2, 4]" in card:
        [reason] = re.findall(r"## With sherpa-onnx\n\n(.*)\n", card)
        assert "[0, 1, 2, 4]" in reason
        assert not list((exported / "exported").glob("*-sherpa*"))
    else:
        assert len(list((exported / "exported").glob("*-sherpa*"))) == 4


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(["head=tdt", "head/predictor=lstm", "head.predictor.num_layers=1"], marks=pytest.mark.slow),
        pytest.param(["head=transducer", "head/predictor=stateless"], marks=pytest.mark.slow),
    ],
    ids=["tdt", "rnnt"],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of tones, and a transducer that is trained until it recognises the tones."""
    from asr.train import train

    folder = tmp_path_factory.mktemp("trained")
    texts = {"train": sentences(128, seed=1), "valid": sentences(8, seed=2), "test": sentences(20, seed=3)}
    write_corpus(folder, texts)
    enough = ["trainer.max_epochs=16", "trainer.check_val_every_n_epoch=16", "optimizer.lr=8e-3"]
    sizes = ["features=slaney_fbank", "head.predictor.dim=32", "head.joint_dim=64"]
    run = [*tone_corpus(folder), f"run_dir={folder / 'run'}"]
    train(settings_with(*TINY, *request.param, *sizes, *run, *enough))
    return folder


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sherpa_onnx_prefers_hotwords_that_it_spells_with_the_exported_pieces(tmp_path: Path) -> None:
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    pieces = ["tokenizer=sentencepiece", "tokenizer.algorithm=bpe", "tokenizer.vocab_size=35"]
    bundle = transducer_bundle(tmp_path / "run", *KINDS["tdt that skips"], *pieces, "head.durations=[0,1,2]")
    assert export([str(bundle), "-o", str(tmp_path / "tdt-onnx")]) == 0
    soundfile.write(tmp_path / "recording.wav", sound(3.0, seed=9).numpy(), 16_000)
    (tmp_path / "names.txt").write_text("lazy dog\n")
    programs = (ROOT / "docs" / "guide" / "export.md").read_text().split("```python\n")[1:]
    [program] = [program.split("```")[0] for program in programs if program.startswith("import sherpa_onnx")]
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "lazy dog" in done.stdout
    [plain] = by_sherpa(tmp_path / "tdt-onnx", [str(tmp_path / "recording.wav")], "modified_beam_search", tmp_path)
    assert "lazy dog" not in plain


@pytest.mark.timeout(1800)
def test_sherpa_onnx_writes_the_texts_of_a_trained_model_in_float32_and_int8(trained: Path, tmp_path: Path) -> None:
    """sherpa-onnx computes its own features, so texts are equal only if the model is certain of its tokens."""
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    paths = [str(utterance.audio_filepath) for utterance in read_manifest(trained / "test.jsonl")]
    expected = texts_of(trained / "run", paths)
    for name, options in (("float32", []), ("int8", ["--quantize", "int8"])):
        folder = tmp_path / name
        assert export([str(trained / "run"), "-o", str(folder), *options]) == 0
        assert texts_of(folder, paths) == expected
        assert by_sherpa(folder, paths) == expected
    assert by_sherpa(tmp_path / "float32", paths, "modified_beam_search") == expected
    assert follow(tmp_path / "float32", 1, Path(paths[0]), tmp_path) == expected[0]
    sizes = [(tmp_path / name / "encoder-sherpa.onnx").stat().st_size for name in ("int8", "float32")]
    assert sizes[0] < 0.7 * sizes[1]
