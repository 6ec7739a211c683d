"""Results, errors and statistics of features do not depend on the number of processes."""

import logging
import math
import multiprocessing
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from asr.base.system import parallel, progress
from asr.base.system.parallel import in_parallel
from asr.components.features.normalize.global_cmvn import GlobalCMVN
from asr.core.build import build_features
from asr.core.data.dataset import energies, load_utterance
from asr.core.data.manifest import Extent, Utterance, read_manifest
from asr.errors import StoreError
from tests.conftest import resolved
from tests.refusals import check_refusal

FEATURES = build_features(resolved("features/normalize=global_cmvn"))


@pytest.fixture
def utterances(tones: Path) -> list[Utterance]:
    """Forty utterances, one of them without audio."""
    readable = read_manifest(tones / "train.jsonl")[:39]
    return [*readable[:7], replace(readable[0], audio_filepath="absent.flac", id="absent"), *readable[7:]]


def test_processes_give_the_results_in_order() -> None:
    things = list(range(-450, 450))
    for num_processes in (None, 0, 1, 3):
        results = in_parallel(abs, things, num_processes=num_processes)
        assert list(results) == [abs(thing) for thing in things]


def test_many_items_are_processed_in_other_processes_and_few_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(thing: int) -> int:
        return os.getpid()

    monkeypatch.setattr(parallel, "num_cores", lambda: 2)
    monkeypatch.setattr(parallel, "MIN_PARALLEL", 10)
    assert set(in_parallel(process, range(10))) == {os.getpid()}
    others = set(in_parallel(process, range(11)))
    assert len(others) == 2
    assert os.getpid() not in others


@pytest.mark.parametrize("num_processes", [0, 1, 3])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_statistics_are_bit_identical_for_any_number_of_processes_and_equal_those_of_a_loop(
    num_processes: int, num_threads: int, utterances: list[Utterance]
) -> None:
    readable = [utterance for utterance in utterances if utterance.id != "absent"]
    frames = [FEATURES.energies(load_utterance(utterance, FEATURES.sample_rate)) for utterance in readable]
    every = torch.cat(frames).double().numpy()
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        alone, several = (GlobalCMVN(num_utterances=1000, min_std=1e-5) for _ in range(2))
        alone.fit(energies(utterances, FEATURES, seed=3, num_processes=0))
        several.fit(energies(utterances, FEATURES, seed=3, num_processes=num_processes))
        assert torch.get_num_threads() == num_threads
    finally:
        torch.set_num_threads(before)
    assert several.files() == alone.files()
    # Sums of values below 20 have errors of 1e-12 in float64; the compared values are float32.
    np.testing.assert_allclose(several.mean.numpy(), every.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(several.std.numpy(), every.std(axis=0), rtol=1e-6)


def test_a_sample_of_the_utterances_does_not_depend_on_the_number_of_processes(utterances: list[Utterance]) -> None:
    first = [list(islice(energies(utterances, FEATURES, 3, processes), 5)) for processes in (0, 2)]
    assert all(torch.equal(*pair) for pair in zip(*first, strict=True))
    assert not multiprocessing.active_children()


def test_a_store_that_fails_during_statistics_is_reported_in_one_line(
    utterances: list[Utterance], tmp_path: Path
) -> None:
    missing = replace(utterances[0], audio_filepath=str(tmp_path / "absent.tar"), extent=Extent(0, 10), id="missing")
    messages = set()
    for num_processes in (0, 2):
        with pytest.raises(StoreError) as caught:
            list(energies([*utterances, missing], FEATURES, 3, num_processes))
        messages.add(str(caught.value))
    [message] = messages
    check_refusal(message, str(tmp_path / "absent.tar"))


@pytest.mark.slow
def test_slow_statistics_log_their_progress(
    utterances: list[Utterance], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    normalize = GlobalCMVN(num_utterances=3, min_std=1e-5)
    monkeypatch.setattr(progress, "LOG_SECONDS", math.inf)
    with caplog.at_level(logging.INFO):
        normalize.fit(energies(utterances, FEATURES, 3, num_processes=0))
        assert not caplog.messages, "the statistics took less than LOG_SECONDS"
        monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
        normalize.fit(energies(utterances, FEATURES, 3, num_processes=0))
    assert caplog.messages[-1] == "measured the features of 3 of at most 3 utterances"
