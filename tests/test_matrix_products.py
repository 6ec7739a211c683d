"""Matrix products by oneDNN: chosen by the kind of processor, exact, and repeatable in training and resumption."""

import argparse
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asr.cli.command import place
from asr.run.events import read_history
from asr.system import matrix_products
from asr.system.matrix_products import MIN_FRAMES, ONEDNN, TORCH, Processor, choose, large_products, read_processor
from asr.train import train
from tests.conftest import TINY, settings_with, tone_corpus
from tests.processes import bundle, metrics

ZEN5 = Processor("AuthenticAMD", 26, has_avx512=True, has_amx=False)
HAS_AMX = torch.cpu._is_amx_tile_supported()
REAL_ONEDNN = matrix_products.onednn

needs_onednn = pytest.mark.skipif(
    HAS_AMX or not torch.backends.mkldnn.is_available(), reason="oneDNN is absent or would multiply in bfloat16"
)


def switch_of_torch() -> Any:
    mkldnn: Any = torch.backends.mkldnn  # its type lacks `matmul`
    return mkldnn.matmul


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the state before each test: this process does not count as a command, and torch chooses the library."""
    monkeypatch.setattr(matrix_products._Process, "is_command", False)
    monkeypatch.setattr(matrix_products._Process, "form", TORCH)


@pytest.fixture
def switched(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Make this process a command on a Zen 5; return a list with an entry for each time that oneDNN is switched on."""
    entries: list[None] = []

    @contextmanager
    def counting() -> Iterator[None]:
        entries.append(None)
        with REAL_ONEDNN():
            yield

    monkeypatch.setattr(matrix_products, "this_processor", lambda: ZEN5)
    monkeypatch.setattr(matrix_products, "is_exact", lambda: True)
    monkeypatch.setattr(matrix_products, "onednn", counting)
    matrix_products.permit()
    return entries


@pytest.mark.parametrize(
    ("processor", "device", "expected"),
    [
        (ZEN5, "cpu", ONEDNN),
        (ZEN5, "cuda", TORCH),
        (ZEN5, "mps", TORCH),
        (replace(ZEN5, family=27), "cpu", ONEDNN),
        (replace(ZEN5, family=25), "cpu", TORCH),  # Zen 4: AVX-512 is as fast as AVX2
        (replace(ZEN5, has_avx512=False), "cpu", TORCH),
        (replace(ZEN5, has_amx=True), "cpu", TORCH),  # products would be in bfloat16
        (replace(ZEN5, vendor="GenuineIntel", family=6), "cpu", TORCH),
        (replace(ZEN5, vendor="GenuineIntel"), "cpu", TORCH),
        (Processor("", 0, has_avx512=False, has_amx=False), "cpu", TORCH),
    ],
)
def test_the_kind_of_processor_and_the_device_determine_whether_onednn_is_chosen(
    processor: Processor, device: str, expected: str
) -> None:
    assert choose(processor, device) == expected


def test_a_processor_is_read_from_the_first_entry_of_cpuinfo() -> None:
    first = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nflags\t\t: fpu avx2 avx512f\n"
    second = "\nprocessor\t: 1\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nflags\t\t: fpu\n"
    assert read_processor(first + second, has_amx=False) == ZEN5
    # an empty file, as if not on Linux; an Arm processor
    for text in ("", "processor\t: 0\nCPU implementer\t: 0x41\nFeatures\t: fp asimd\n"):
        assert read_processor(text, has_amx=False) == Processor("", 0, has_avx512=False, has_amx=False)


@needs_onednn
def test_onednns_products_are_exact_on_a_processor_without_amx() -> None:
    assert matrix_products.is_exact()


def test_products_in_bfloat16_are_refused(
    switched: list[None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @contextmanager
    def in_bfloat16() -> Iterator[None]:
        with torch.autocast("cpu", torch.bfloat16):
            yield

    monkeypatch.undo()
    monkeypatch.setattr(matrix_products._Process, "is_command", True)
    monkeypatch.setattr(matrix_products, "this_processor", lambda: ZEN5)
    monkeypatch.setattr(matrix_products, "onednn", in_bfloat16)
    assert not matrix_products.is_exact()
    assert matrix_products.adopt("cpu") == TORCH
    assert "oneDNN's are not exact on this processor" in caplog.text


def test_only_commands_choose_onednn_and_only_for_large_batches(
    switched: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_products._Process, "is_command", False)
    assert matrix_products.adopt("cpu") == TORCH, "a caller of the library is not a command"
    matrix_products.permit()
    assert matrix_products.adopt("cuda") == TORCH
    assert matrix_products.adopt("cpu") == matrix_products.form() == ONEDNN
    with large_products(MIN_FRAMES - 1):
        pass
    assert switched == []
    with large_products(MIN_FRAMES):
        assert switch_of_torch().fp32_precision == "bf16"
    assert len(switched) == 1


def test_torchs_precision_can_be_read_after_a_batch_even_if_the_batch_failed(switched: list[None]) -> None:
    matrix_products.adopt("cpu")
    before = switch_of_torch().fp32_precision
    with pytest.raises(ZeroDivisionError), large_products(MIN_FRAMES):
        raise ZeroDivisionError
    assert switch_of_torch().fp32_precision == before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("computes_in_threads", [False, True])
def test_a_command_that_computes_in_several_threads_leaves_the_choice_to_torch(
    computes_in_threads: bool, switched: list[None]
) -> None:
    model = SimpleNamespace(is_program=False, device=torch.device("cpu"))
    recognizer: Any = SimpleNamespace(model=model, recording_encoder=SimpleNamespace(), to=lambda *_: recognizer)
    options = argparse.Namespace(device="cpu", precision="float32")
    place(recognizer, options, computes_in_threads=computes_in_threads)
    assert matrix_products.form() == (TORCH if computes_in_threads else ONEDNN)


def run(run_dir: Path, corpus: Path, steps: int) -> Path:
    more = [
        f"trainer.max_steps={steps}",
        "encoder.dropout=0.1",
        "resume.allow=[trainer]",
        "num_threads=1",
        "trainer.accelerator=cpu",
    ]
    train(settings_with(*TINY, *tone_corpus(corpus), f"run_dir={run_dir}", *more))
    return run_dir


@needs_onednn
def test_repeated_and_resumed_runs_are_bit_identical(switched: list[None], tones: Path, tmp_path: Path) -> None:
    whole, again = run(tmp_path / "whole", tones, 6), run(tmp_path / "again", tones, 6)
    assert len(switched) >= 12, "each step is computed by oneDNN"
    assert bundle(again) == bundle(whole)
    run(tmp_path / "parts", tones, 3)
    parts = run(tmp_path / "parts", tones, 6)
    assert weights(parts) == weights(whole)
    losses = {row["step"]: row["train/loss"] for row in metrics(whole)}
    assert {row["step"]: row["train/loss"] for row in metrics(parts)}.items() >= losses.items()
    assert json.loads((whole / "results.json").read_text())["test"]["matrix_products"] == ONEDNN
    history = read_history(whole / "events.jsonl")
    assert history.latest is not None
    assert history.latest.machine.endswith("matrix products by oneDNN")


def weights(run_dir: Path) -> bytes:
    return bundle(run_dir)["weights.safetensors"]


@needs_onednn
def test_a_run_begun_with_torchs_choice_resumes_with_onednn_and_logs_the_change(
    switched: list[None], tones: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix_products._Process, "is_command", False)
    run_dir = run(tmp_path / "run", tones, 3)
    assert json.loads((run_dir / "results.json").read_text())["test"]["matrix_products"] == TORCH
    matrix_products.permit()
    changed = "matrix products were computed by the library that torch chooses, and are now computed by oneDNN"
    with caplog.at_level(logging.WARNING, "asr"):
        run(run_dir, tones, 6)
        assert changed in caplog.text
        caplog.clear()
        run(run_dir, tones, 9)
        assert "matrix products" not in caplog.text, "only the change is logged, not each start"
