"""asr compared with NVIDIA NeMo: transducers with random weights are converted, and NeMo reads the archives of asr.

NeMo runs in a separate environment: that of `make .venv-nets`, or of the Python in ASR_NEMO_PYTHON.
"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.convert import main
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import read_manifest
from asr.core.run.initialization import with_parts
from asr.export import main as export
from asr.interfaces import Encoded
from asr.merge import main as merge
from asr.train import train
from tests.conftest import ROOT, TINY, settings_with, tone_corpus
from tests.nemo import CAUSAL, DIM, LEFT, LOOK_AHEADS, NA_FEATURES, SAMPLE_RATE, sentencepiece_model, vocabulary
from tests.nemo_peer import TOKENS
from tests.targets import targets_of
from tests.test_conformer_streaming import stream
from tests.test_export_transducers import by_sherpa, texts_of
from tests.test_nemo_transducers import HIDDEN, JOINT, KINDS, config
from tests.test_parakeet import sound
from tests.tones import sentences, write_corpus

PYTHON = Path(os.environ.get("ASR_NEMO_PYTHON", ROOT / ".venv-nets" / "bin" / "python"))
PEER = ROOT / "tests" / "nemo_peer.py"
NEAR = {  # kinds of the encoder's settings
    "tdt with local attention": {"self_attention_model": "rel_pos_local_attn", "att_context_size": [4, 4]},
    "tdt with a band": {"att_context_size": [4, 4]},
    "tdt for chunks and whole recordings": {
        "att_context_style": "chunked_limited_with_rc",
        "att_context_size": [-1, -1],
        "att_chunk_context_size": [[70], [1, 2, 7, 13], [0, 1, 2, 3, 4, 7, 13]],
        "conv_context_style": "dcc",
    },
}
TAGGED, TAGS = "tdt with tags", ("<|en|>", "<en-US>", "<EOU>", "<EOB>", "<|endoftext|>")
CAUSAL_KINDS = {f"{kind}, look-ahead {n}": (kind, n) for kind in ("rnnt", "hybrid rnnt") for n in LOOK_AHEADS[:3]}
ALL_KINDS = [*KINDS, *NEAR, TAGGED, *CAUSAL_KINDS]
WAVEFORMS = [sound(1.5), sound(0.7, seed=1), sound(1.1, seed=2)]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs NeMo: run make .venv-nets, or set ASR_NEMO_PYTHON"),
]


def run_nemo(task: str, folders: list[Path]) -> None:
    command = [str(PYTHON), "-P", str(PEER), task, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    if done.returncode and "No module named 'nemo'" in done.stderr:
        pytest.skip(f"{PYTHON} has no NeMo")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NeMo's archive and outputs, our bundle, and NeMo's texts of our archive, for each kind of model."""
    folder = tmp_path_factory.mktemp("nemo")
    places = []
    for kind in ALL_KINDS:
        place = folder / kind
        place.mkdir()
        tags = TAGS if kind == TAGGED else ()
        (place / "tokenizer.model").write_bytes(sentencepiece_model(tags=tags))
        (place / "vocab.txt").write_text("\n".join(vocabulary()))
        sizes = {"enc_hidden": DIM, "pred_hidden": HIDDEN, "joint_hidden": JOINT}
        if kind in CAUSAL_KINDS:
            name, look_ahead = CAUSAL_KINDS[kind]
            sizes_of = {"att_context_size": [[LEFT, n] for n in dict.fromkeys([look_ahead, *LOOK_AHEADS])]}
            made = config(name, encoder=CAUSAL | sizes_of, preprocessor=NA_FEATURES)
        else:
            near = NEAR.get(kind)
            made = config("tdt", encoder=near) if near else config(kind.removesuffix(" with tags"))
        (place / "config.json").write_text(json.dumps(made | {"model_defaults": sizes}))
        torch.save(WAVEFORMS, place / "waveforms.pt")
        places.append(place)
    run_nemo("make", places)
    for place in places:
        assert main([str(place / "theirs.nemo"), "-o", str(place / "ours")]) == 0
        assert main([str(place / "ours"), "--to", "nemo", "-o", str(place / "back.nemo")]) == 0
    run_nemo("read", places)
    return folder


@pytest.mark.parametrize("kind", ALL_KINDS)
@torch.no_grad()
def test_encoder_joint_network_and_losses_equal_nemos(kind: str, models: Path) -> None:
    expected = torch.load(models / kind / "expected.pt", weights_only=True)
    model = load_recognizer(models / kind / "ours").model
    features = [model.features(waveform) for waveform in WAVEFORMS]
    lengths = torch.tensor([len(rows) for rows in features])
    encoded: Encoded = model(torch.nn.utils.rnn.pad_sequence(features, batch_first=True), lengths)
    assert encoded.lengths.tolist() == expected["lengths"].tolist()
    head: Any = model.head
    joiner = head.joiner
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) + 1 for row in TOKENS], batch_first=True)
    token_lengths = torch.tensor([len(row) for row in TOKENS])
    logits = joiner(joiner.of_frames(encoded.out)[:, :, None], joiner.of_tokens(head.predictor(tokens))[:, None])
    blank = len(vocabulary())
    order = [blank, *range(blank), *range(blank + 1, logits.shape[-1])]
    for row, (length, count) in enumerate(zip(encoded.lengths.tolist(), token_lengths.tolist(), strict=True)):
        frames = encoded.out[row, :length], expected["encoder_out"][row, :length]
        torch.testing.assert_close(*frames, rtol=0, atol=1e-3)  # rounding, because the features are in float32
        theirs = expected["logits"][row, :length, : count + 1][..., order]
        actual = logits[row, :length, : count + 1].log_softmax(dim=-1)  # on a CPU, NeMo does this, too
        torch.testing.assert_close(actual, theirs, rtol=0, atol=1e-2)
    losses = head.losses(encoded, targets_of(tokens, token_lengths))
    ours = losses.get("transducer", losses["loss"]).float()
    torch.testing.assert_close(ours, expected["losses"].float(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", CAUSAL_KINDS)
@torch.no_grad()
def test_a_causal_stream_equals_nemos(kind: str, models: Path) -> None:
    """The caches of NeMo give another output than its one pass with a look-ahead of 0, and may lack the last frame."""
    expected = torch.load(models / kind / "expected.pt", weights_only=True)
    model = load_recognizer(models / kind / "ours").model
    encoder: Any = model.encoder
    for waveform, rows, whole in zip(WAVEFORMS, expected["streamed"], expected["encoder_out"], strict=True):
        out, _, _ = stream(encoder, model.features(waveform), encoder.chunk_frames)
        torch.testing.assert_close(out, whole[: len(out)], rtol=0, atol=1e-4)
        assert 0 <= len(out) - len(rows) <= 1
        if encoder.chunk_frames > 1:
            torch.testing.assert_close(out[: len(rows)], rows, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ALL_KINDS)
def test_greedy_texts_equal_those_of_nemo_without_tags_for_its_archive_and_for_ours(kind: str, models: Path) -> None:
    expected = torch.load(models / kind / "expected.pt", weights_only=True)["texts"]
    assert sum(map(len, expected)) > 10, "the texts must not be empty"
    transcripts = load_recognizer(models / kind / "ours").transcribe(WAVEFORMS, sample_rate=SAMPLE_RATE)
    untagged = [" ".join(re.sub("|".join(map(re.escape, TAGS)), "", text).split()) for text in expected]
    assert any(tag in text for text in expected for tag in TAGS) == (kind == TAGGED)
    assert [transcript.text for transcript in transcripts] == untagged
    assert json.loads((models / kind / "texts.json").read_text()) == expected


def test_a_model_that_nemo_saved_is_adapted_with_lora_exported_and_read_by_sherpa_onnx(tmp_path: Path) -> None:
    """sherpa-onnx computes its own features, so the model is trained until it is certain of its tokens."""
    pytest.importorskip("sherpa_onnx", reason="sherpa-onnx is not installed")
    texts = {"train": sentences(128, seed=1), "valid": sentences(8, seed=2), "test": sentences(20, seed=3)}
    write_corpus(tmp_path, texts)
    corpus = [*tone_corpus(tmp_path), "corpus.test=[]"]
    head = ["head=tdt", "head/predictor=lstm", "head.predictor.dim=32", "head.predictor.trains_blank=false"]
    enough = ["trainer.max_epochs=16", "trainer.check_val_every_n_epoch=16", "optimizer.lr=8e-3"]
    made = [*TINY, *head, "head.joint_dim=64", "features=slaney_fbank", *enough, f"run_dir={tmp_path / 'run'}"]
    train(settings_with(*made, *corpus))
    assert main([str(tmp_path / "run"), "--to", "nemo", "-o", str(tmp_path / "back.nemo")]) == 0
    run_nemo("save", [tmp_path])
    assert main([str(tmp_path / "theirs.nemo"), "-o", str(tmp_path / "parakeet")]) == 0
    settings = [line for line in TINY if line.startswith(("trainer", "data", "schedule", "augment"))]
    settings += [f"init.from={tmp_path / 'parakeet'}", "adapter=lora", "trainer.max_steps=50", "trainer.max_epochs=-1"]
    settings += [*corpus, f"run_dir={tmp_path / 'adapted'}"]
    train(with_parts(settings_with(*settings), settings))
    base, merged = str(tmp_path / "parakeet"), tmp_path / "merged"
    assert merge([str(tmp_path / "adapted"), "--base", base, "-o", str(merged)]) == 0
    assert load_recognizer(merged).decode.description == load_recognizer(base).decode.description
    assert export([str(merged), "-o", str(tmp_path / "exported")]) == 0
    utterances = read_manifest(tmp_path / "test.jsonl")
    paths = [utterance.audio_filepath for utterance in utterances]
    expected = texts_of(merged, paths)
    assert by_sherpa(tmp_path / "exported", paths) == expected
    assert sum(text == utterance.text for text, utterance in zip(expected, utterances, strict=True)) >= 15
