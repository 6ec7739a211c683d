"""A head that is not frame-wise, its decoder and a part of a block are each one Python file and one YAML file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, TINY, tone_corpus
from tests.refusals import mentions
from tests.test_train import metrics

HEAD = '''
"""Count an utterance's tokens from the mean of encoder_out."""

import torch
from torch import Tensor, nn

from asr.interfaces import Decoders
from asr.lengths import padding_mask


class TokenCount(nn.Module):
    loss_names = ("first_block",)
    decoders = Decoders(greedy=("repeated",), beam=())
    views = 1
    frame_head = None
    restrict = None

    def __init__(self, output_dim, block_dims, vocab_size):
        super().__init__()
        self.linear = nn.Linear(output_dim, 1)

    @property
    def taps(self):
        return {0: lambda x, padding_mask: x}

    def count(self, encoder_out: Tensor, lengths: Tensor) -> Tensor:
        padding = padding_mask(lengths, encoder_out.shape[1])
        mean = encoder_out.masked_fill(padding[:, :, None], 0).sum(dim=1) / lengths.clamp(min=1)[:, None]
        return self.linear(mean)[:, 0]

    def losses(self, encoded, targets):
        last = (self.count(encoded.out, encoded.lengths) - targets["token_lengths"]).abs()
        first = (self.count(encoded.blocks[0].out, encoded.blocks[0].lengths) - targets["token_lengths"]).abs()
        return {"loss": last + 0.1 * first, "first_block": first}

    @staticmethod
    def min_frames(tokens):
        return 0

    @staticmethod
    def cells(frames, tokens):
        return 1
'''

DECODER = '''
"""Repeat the first token as often as the head counts tokens."""

from asr.interfaces import NO_BIASING, Hypothesis, Span


class Repeated:
    needs = ("count",)
    max_seconds = 1.0
    max_hypotheses = 1
    biasing = NO_BIASING
    compile_hotwords = None
    tunable = {}
    description = "the first token, repeated"

    def __init__(self, head, tokenizer, normalize):
        self.head = head

    def evidence(self, encoded):
        return self.head.count(encoded.out, encoded.lengths).tolist(), encoded.frame_counts

    def search(self, evidence):
        return [[repeated(round(count), length)] for count, length in zip(*evidence, strict=True)]


def repeated(count, length):
    count = min(max(count, 0), length)
    frames = [Span(number, number + 1) for number in range(count)]
    return Hypothesis([2] * count, 0.0, frames, [1.0] * count)
'''


NORM = '''
"""Divide each frame by its largest channel."""

from typing import Annotated

from torch import nn

from asr.base.settings.rule import above


class LargestChannel(nn.Module):
    def __init__(self, dim, *, floor: Annotated[float, above(0, 1)]):
        super().__init__()
        self.floor = floor

    def forward(self, x, padding_mask):
        return x / x.abs().amax(dim=-1, keepdim=True).clamp(min=self.floor)
'''

CONVOLUTION = '''
"""Combine each frame with the previous one."""

from torch import cat, nn, zeros_like


class FrameBefore(nn.Module):
    def __init__(self, dim, norm, activation):
        super().__init__()
        self.linear, self.norm, self.activation = nn.Linear(2 * dim, dim), norm(dim), activation()

    def forward(self, x, padding_mask):
        before = cat([zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        return self.activation(self.norm(self.linear(cat([before, x], dim=-1)), padding_mask))
'''

ACTIVATION = '''
"""Softsign."""

from torch import nn


class Softsign(nn.Module):
    def forward(self, x):
        return x / (1 + x.abs())
'''

PARTS = {
    "head/token_count": (HEAD, ""),
    "decode/repeated": (DECODER, ""),
    "encoder/block/norm/largest_channel": (NORM, "floor: 1.0e-3\n"),
    "encoder/block/convolution/frame_before": (CONVOLUTION, ""),
    "encoder/block/activation/softsign": (ACTIVATION, ""),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package to which PARTS are added, without any other change."""
    folder = tmp_path_factory.mktemp("house")
    for name in ("asr", "conf"):
        shutil.copytree(ROOT / name, folder / name)
    for path, (code, settings) in PARTS.items():
        (folder / "asr" / "components" / f"{path}.py").write_text(code)
        (folder / "conf" / f"{path}.yaml").write_text(f"name: {Path(path).name}\n{settings}")
    return folder


def run(house: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=house, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_new_head_trains_resumes_and_transcribes_short_and_long_recordings(house: Path, tones: Path) -> None:
    common = ["asr.train", "head=token_count", "decode=repeated", *TINY, *tone_corpus(tones), "run_dir=run"]
    for steps in (4, 8):
        ended = run(house, *common, f"trainer.max_steps={steps}", "resume.allow=[trainer.max_steps]")
        assert ended.returncode == 0, ended.stderr
    rows = [row for row in metrics(house / "run") if row["train/loss"]]
    assert all(float(row["train/first_block"]) > 0 for row in rows)
    assert int(float(rows[-1]["step"])) == 8
    ended = run(house, "asr.transcribe", "run", str(tones / "test.jsonl"), "--format", "json")
    assert ended.returncode == 0, ended.stderr
    assert '"confidence": 1.0' in ended.stdout
    ended = run(house, "asr.align", "run", str(tones / "test.jsonl"))
    assert ended.returncode == 1
    assert mentions(ended.stderr, "token probabilities")
    assert "Traceback" not in ended.stderr


def test_the_error_for_a_decoder_that_does_not_fit_its_head_names_both(house: Path, tones: Path) -> None:
    ended = run(house, "asr.train", "head=token_count", *TINY, *tone_corpus(tones), "run_dir=never")
    assert ended.returncode == 1
    assert mentions(ended.stderr, "decode=greedy ... frame_head")
    assert not (house / "never").exists()


@pytest.mark.slow
def test_new_parts_of_a_block_train_and_are_in_the_bundle(house: Path, tones: Path) -> None:
    tiny = [setting for setting in TINY if not setting.startswith("encoder.block.convolution")]
    parts = [path.removeprefix("encoder/block/").split("/") for path in PARTS if path.startswith("encoder/")]
    chosen = [f"encoder/block/{group}={name}" for group, name in parts]
    chosen.append("~encoder.block.convolution.kernel_size")  # conformer_* sets it, but this convolution lacks it
    ended = run(house, "asr.train", *chosen, *tiny, *tone_corpus(tones), "run_dir=parts", "trainer.max_steps=2")
    assert ended.returncode == 0, ended.stderr
    config = json.loads((house / "parts" / "bundle" / "config.json").read_text())["encoder"]["block"]
    assert {group: config[group]["name"] for group, _ in parts} == dict(parts)
