"""Every head with every decoder, and every encoder with every head, as far as they go together."""

import functools
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.build import build_features, build_model, build_tokenizer
from asr.checkpoint.load import load_recognizer
from asr.data.batch_plan import BatchBounds
from asr.errors import InputError
from asr.interfaces import Encoded
from asr.recognition.chunks import ChunkBounds
from asr.recognition.inference import Inference
from asr.train import train
from tests.conftest import CONF, TINY, resolved, tone_corpus
from tests.processes import bundle, finish, kill, metrics, resumptions, start, steps_logged, wait_for
from tests.tones import SAMPLE_RATE, sentences, speak

HEADS, DECODERS, ENCODERS = (
    sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in ("head", "decode", "encoder")
)
FAST = [("transducer", "transducer_greedy"), ("transducer", "transducer_beam")]
PIECES = ["", " ", *"abcdef"]  # of the tones
SMALL = {
    "transducer": ["head.joint_dim=32", "head.predictor.dim=16"],
    "ctc_self_conditioned": ["head.num_intermediate=1"],
}
IN_CHUNKS = Inference(BatchBounds(10, 8), ChunkBounds(chunk_seconds=1.5, context_seconds=0.25), nbest=2)


def slow_but(fast: list[tuple[str, ...]], *groups: list[str]) -> Any:
    """The product of these, all of it slow but for a few."""
    pairs = [(first, second) for first in groups[0] for second in groups[1]]
    return [pytest.param(*pair, marks=() if pair in fast else pytest.mark.slow) for pair in pairs]


@functools.cache
def trained(head: str, corpus: Path) -> Path:
    """A run of some steps."""
    run_dir = corpus / f"run-{head}"
    steps = ["trainer.max_steps=12", "trainer.max_epochs=-1", "corpus.test=[]"]
    train(resolved(*TINY, f"head={head}", *SMALL.get(head, []), *tone_corpus(corpus), f"run_dir={run_dir}", *steps))
    return run_dir


@pytest.mark.parametrize(("head", "decode"), slow_but(FAST, HEADS, DECODERS))
def test_a_head_is_heard_by_a_decoder_with_times_in_chunks_and_from_a_bundle_that_was_moved(
    head: str, decode: str, tones: Path, tmp_path: Path
) -> None:
    run_dir = trained(head, tones)
    if decode.startswith("transducer") and not head.startswith("transducer"):
        with pytest.raises(InputError, match=f"decode={decode} must have a head with a joiner; head={head} has none"):
            load_recognizer(run_dir, decode={"name": decode})
        return
    recognizer = load_recognizer(run_dir, decode={"name": decode})
    with torch.no_grad():  # so that there is something to be heard: not blanks, nor spaces
        for name, parameter in recognizer.model.head.named_parameters():
            if name.endswith(("linear.bias", "output.bias")) and len(parameter) == len(PIECES):
                parameter[:2] -= 9.0
    if decode.endswith("greedy") and decode == resolved(f"head={head}")["decode"]["name"]:
        implied = load_recognizer(run_dir, decode={"beam_size": 3}).decode
        assert type(implied).__name__.lower() == decode.replace("greedy", "beam").replace("_", "")
        assert implied.max_hypotheses == 3
    short = torch.from_numpy(speak("abc def"))
    long = torch.cat([torch.from_numpy(speak(text)) for text in sentences(4, seed=9)])
    assert len(long) > 3 * 1.5 * SAMPLE_RATE
    transcripts = recognizer.transcribe([short, long, short[:0]], IN_CHUNKS)
    for waveform, transcript in zip((short, long), transcripts, strict=False):
        assert transcript.words
        assert 1 <= len(transcript.alternatives) <= 2
        assert all(0 <= word.confidence <= 1 for word in transcript.words)
        times = [time for word in transcript.rounded().words for time in (word.start, word.end)]
        assert times == sorted(times)
        assert times[0] >= 0
        assert times[-1] <= len(waveform) / SAMPLE_RATE + 1e-3
    assert transcripts[2].text == ""
    alone = recognizer.transcribe([short], IN_CHUNKS)[0]
    assert alone.text == transcripts[0].text, "as in any batch"
    moved = shutil.copytree(run_dir / "bundle", tmp_path / "moved")
    again = load_recognizer(moved, decode={"name": decode}).transcribe([short, long], IN_CHUNKS)
    unchanged = load_recognizer(run_dir, decode={"name": decode}).transcribe([short, long], IN_CHUNKS)
    assert [each.as_dict() for each in again] == [each.as_dict() for each in unchanged]


@pytest.mark.parametrize(
    "head", [pytest.param(head, marks=() if head == "ctc_consistency" else pytest.mark.slow) for head in HEADS]
)
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(head: str, tones: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    overrides = [*TINY, *tone_corpus(tones), f"head={head}", *SMALL.get(head, []), "corpus.test=[]", "num_threads=1"]
    overrides += ["augment=[speed_perturb,spec_augment]", "encoder.dropout=0.1", "trainer.max_epochs=2"]
    overrides += ["data.batch_seconds=16", "checkpoint.every_steps=2", "trainer.check_val_every_n_epoch=2"]
    assert finish(start(resolved(*overrides, f"run_dir={whole}"), tmp_path / "log")) == 0
    running = start(resolved(*overrides, f"run_dir={parts}"), tmp_path / "log")
    assert wait_for(lambda: steps_logged(parts) > 3, running)
    kill(running)
    assert finish(start(resolved(*overrides, f"run_dir={parts}"), tmp_path / "log")) == 0
    assert [step > 0 for step, _ in resumptions(parts)] == [True]
    assert bundle(parts) == bundle(whole)
    assert metrics(parts) == metrics(whole)


@pytest.mark.parametrize(("encoder", "head"), slow_but([("transformer", "transducer")], ENCODERS, HEADS))
def test_a_head_trains_every_weight_of_every_encoder(encoder: str, head: str) -> None:
    small = ["encoder.dim=16", "encoder.num_heads=2", "encoder.num_layers=4", "encoder.subsampling.num_channels=2"]
    config = resolved(f"encoder={encoder}", f"head={head}", *small)
    tokenizer, features = build_tokenizer(config), build_features(config)
    tokenizer.fit(["abcdef "])
    model = build_model(config, tokenizer, features)
    views, lengths = model.head.views, torch.tensor([90, 61])
    encoded: Encoded = model(torch.randn(2 * views, 90, features.dim), lengths.repeat(views))
    losses = model.head.losses(encoded, torch.tensor([[1, 2, 2], [3, 1, 0]]), torch.tensor([3, 2]))
    assert set(losses) == {"loss", *model.head.loss_names}
    assert all(loss.shape == (2,) and loss.isfinite().all() for loss in losses.values())
    losses["loss"].sum().backward()
    idle = [
        name for name, weight in model.named_parameters() if weight.grad is None or not weight.grad.isfinite().all()
    ]
    assert not idle
    assert model.head.cells(10, 3) > 0
