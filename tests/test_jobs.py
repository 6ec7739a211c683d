"""The server's queue: batches, their order, and clients that disconnect."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from asr.apps.serve.jobs import Job, Jobs, QueueFullError, StoppedError
from asr.core.data.batch_plan import BatchBounds
from asr.core.recognition.chunks import ChunkBounds
from asr.core.recognition.inference import Inference
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.recordings import whole_file
from asr.errors import AudioError
from asr.interfaces import Encoded, Hypothesis, Taps
from tests.conftest import PATIENCE
from tests.listener import listener
from tests.refusals import refused
from tests.tones import SAMPLE_RATE, sentences, speak

WatchSegments = Callable[[Callable[[], None]], None]
OPTIONS = Inference(BatchBounds(batch_seconds=20, max_utterances=8), ChunkBounds(4, 1))


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return listener()


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """Return sentences of different lengths with their recordings; the longest is longer than a chunk."""
    folder = tmp_path_factory.mktemp("said")
    texts = [*sentences(14, seed=3), " ".join(sentences(8, seed=4)), " ".join(sentences(12, seed=5))]
    files = [(text, folder / f"{number}.wav") for number, text in enumerate(texts)]
    for text, path in files:
        soundfile.write(path, speak(text), SAMPLE_RATE)
    return files


class Gate:
    """Block the net until `open` is set, and record the number of recordings in each batch."""

    def __init__(self, recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self.batches: list[int] = []
        net = recognizer.model.encoder.forward

        def forward(features: torch.Tensor, lengths: torch.Tensor, taps: Taps) -> Encoded:
            self.batches.append(len(features))
            self.reached.set()
            assert self.open.wait(PATIENCE)
            return net(features, lengths, taps)

        monkeypatch.setattr(recognizer.model.encoder, "forward", forward)


@pytest.fixture
def gate(recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(recognizer, monkeypatch)


@pytest.fixture
def start(recognizer: Recognizer) -> Iterator[Callable[..., Jobs]]:
    """Make queues whose threads end with the test."""
    made: list[Jobs] = []

    def make(
        options: Inference = OPTIONS, queue: int = 64, on_batch: Callable[[int], object] = lambda number: None
    ) -> Jobs:
        made.append(Jobs(recognizer, options, queue=queue, on_batch=on_batch))
        made[-1].start()
        return made[-1]

    yield make
    for jobs in made:
        jobs.stop()
        jobs.join(PATIENCE)


@pytest.fixture
def before_each_segment(recognizer: Recognizer, monkeypatch: pytest.MonkeyPatch) -> WatchSegments:
    """Set a function that is called before each segment is decoded."""

    def watch(call: Callable[[], None]) -> None:
        search = recognizer.decode.search

        def watched(evidence: Any) -> list[list[Hypothesis]]:
            call()
            return search(evidence)

        monkeypatch.setattr(recognizer.decode, "search", watched)

    return watch


def job_of(path: Path, nbest: int = 1) -> Job:
    return Job(whole_file(path, f"{path} {time.monotonic_ns()}"), nbest)


def test_each_concurrent_recording_has_the_same_transcript_as_alone(
    recognizer: Recognizer, start: Callable[..., Jobs], recordings: list[tuple[str, Path]]
) -> None:
    alone = {path: recognizer.transcribe([path], OPTIONS)[0] for _, path in recordings}
    jobs = start()

    def ask(path: Path) -> None:
        job = job_of(path)
        jobs.submit(job)
        transcript = job.outcome.result(PATIENCE)
        assert transcript.text == alone[path].text
        assert [word.start for word in transcript.words] == [word.start for word in alone[path].words]
        for word, same in zip(transcript.words, alone[path].words, strict=True):
            # In asr.transcribe, too, a confidence may differ by this amount between batches.
            assert word.confidence == pytest.approx(same.confidence, abs=1e-4)

    with ThreadPoolExecutor(16) as clients:
        list(clients.map(ask, [path for _, path in recordings] * 4))


def test_short_waiting_recordings_form_batches_within_the_limits(
    gate: Gate, start: Callable[..., Jobs], recordings: list[tuple[str, Path]]
) -> None:
    taken: list[int] = []
    jobs = start(replace(OPTIONS, batches=BatchBounds(batch_seconds=6.5, max_utterances=4)), on_batch=taken.append)
    short = [job_of(path) for _, path in recordings[:14]]
    jobs.submit(short[0])
    assert gate.reached.wait(PATIENCE)  # the others arrive while the net processes this one
    for job in short[1:]:
        jobs.submit(job)
    assert jobs.waiting == 13
    gate.open.set()
    for job in short:
        job.outcome.result(PATIENCE)
    expected, waiting = [1], [job.utterance.duration for job in short[1:]]
    while waiting:
        number = 0
        while number < min(4, len(waiting)) and (number == 0 or max(waiting[: number + 1]) * (number + 1) <= 6.5):
            number += 1
        expected.append(number)
        waiting = waiting[number:]
    assert gate.batches == taken == expected
    assert {2, 4} <= set(expected[1:-1]), "both limits must take effect"


def test_without_batching_each_recording_is_recognised_alone(
    gate: Gate, start: Callable[..., Jobs], recordings: list[tuple[str, Path]]
) -> None:
    jobs = start(replace(OPTIONS, batches=BatchBounds(batch_seconds=20, max_utterances=1)))
    gate.open.set()
    submitted = [job_of(path) for _, path in recordings[:6]]
    for job in submitted:
        jobs.submit(job)
    for job in submitted:
        job.outcome.result(PATIENCE)
    assert gate.batches == [1] * 6


def test_a_short_recording_does_not_wait_for_the_end_of_a_long_one(
    recognizer: Recognizer,
    start: Callable[..., Jobs],
    recordings: list[tuple[str, Path]],
    tmp_path: Path,
    before_each_segment: WatchSegments,
) -> None:
    waveform = np.concatenate([speak(text + "  ") for text in sentences(60, seed=6)])  # longer than a minute
    soundfile.write(tmp_path / "long.wav", waveform, SAMPLE_RATE)
    jobs, long, short = start(), job_of(tmp_path / "long.wav"), job_of(recordings[0][1])
    decoded: list[str] = []

    def count() -> None:
        decoded.append("segment")
        if len(decoded) == 2:  # recognition of the long recording has begun
            jobs.submit(short)
            short.outcome.add_done_callback(lambda _: decoded.append("short one is done"))

    before_each_segment(count)
    jobs.submit(long)
    text = long.outcome.result(PATIENCE).text
    assert short.outcome.result(PATIENCE).text == recordings[0][0]
    assert decoded.index("short one is done") == 3  # two segments of the long recording, then one of the short one
    assert len(decoded) > 8
    assert text == recognizer.transcribe([tmp_path / "long.wav"], OPTIONS, sample_rate=SAMPLE_RATE)[0].text


def test_a_recording_withdrawn_while_it_waits_is_not_recognised(
    gate: Gate, start: Callable[..., Jobs], recordings: list[tuple[str, Path]]
) -> None:
    jobs = start()
    first, leaver, last = (job_of(path) for _, path in recordings[:3])
    jobs.submit(first)
    assert gate.reached.wait(PATIENCE)
    jobs.submit(leaver)
    jobs.submit(last)
    assert jobs.withdraw(leaver)
    assert jobs.waiting == 1
    gate.open.set()
    last.outcome.result(PATIENCE)
    assert gate.batches == [1, 1]
    assert not leaver.outcome.done()


def test_withdrawing_a_long_recording_stops_its_recognition_at_the_next_segment(
    start: Callable[..., Jobs],
    recordings: list[tuple[str, Path]],
    tmp_path: Path,
    before_each_segment: WatchSegments,
) -> None:
    soundfile.write(tmp_path / "long.wav", np.tile(speak("abc def  "), 60), SAMPLE_RATE)
    jobs, long, after = start(), job_of(tmp_path / "long.wav"), job_of(recordings[0][1])
    segments = 0

    def count() -> None:
        nonlocal segments
        segments += 1
        if segments == 2:
            assert not jobs.withdraw(long)  # recognition of this recording has already begun

    before_each_segment(count)
    jobs.submit(long)
    assert type(long.outcome.exception(PATIENCE)).__name__ == "_GoneError"
    assert segments == 2
    jobs.submit(after)
    assert after.outcome.result(PATIENCE).text == recordings[0][0]


def test_a_full_queue_accepts_no_more_recordings(
    gate: Gate, start: Callable[..., Jobs], recordings: list[tuple[str, Path]]
) -> None:
    jobs = start(queue=3)
    jobs.submit(job_of(recordings[0][1]))
    assert gate.reached.wait(PATIENCE)
    waiting = [job_of(path) for _, path in recordings[:3]]
    for job in waiting:
        jobs.submit(job)
    assert jobs.full
    with pytest.raises(QueueFullError):
        jobs.submit(job_of(recordings[0][1]))
    gate.open.set()
    for job in waiting:
        job.outcome.result(PATIENCE)
    assert not jobs.full


def test_only_the_bad_file_in_a_batch_is_refused(
    gate: Gate, start: Callable[..., Jobs], recordings: list[tuple[str, Path]], tmp_path: Path
) -> None:
    jobs = start()
    waveform = speak("abc")
    waveform[7] = np.nan
    soundfile.write(tmp_path / "nan.wav", waveform, SAMPLE_RATE, subtype="FLOAT")
    good, bad = [job_of(path) for _, path in recordings[:3]], job_of(tmp_path / "nan.wav")
    for job in (good[0], bad, *good[1:]):
        jobs.submit(job)
    gate.open.set()
    for job, (text, _) in zip(good, recordings, strict=False):
        assert job.outcome.result(PATIENCE).text == text
    with refused(AudioError, "nan"):
        bad.outcome.result(PATIENCE)


def test_an_error_of_the_net_fails_only_the_recordings_of_that_batch(
    recognizer: Recognizer,
    start: Callable[..., Jobs],
    recordings: list[tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = start()

    def fail(*_: object) -> None:
        raise RuntimeError("[enforce fail] can't allocate memory")

    with monkeypatch.context() as broken:
        broken.setattr(recognizer.model.encoder, "forward", fail)
        unlucky = job_of(recordings[0][1])
        jobs.submit(unlucky)
        with pytest.raises(RuntimeError, match="allocate"):
            unlucky.outcome.result(PATIENCE)
    after = job_of(recordings[1][1])
    jobs.submit(after)
    assert after.outcome.result(PATIENCE).text == recordings[1][0]


@pytest.mark.parametrize("part", ["features", "net", "decoder"])
def test_an_error_of_one_recording_fails_only_that_recording(
    part: str,
    gate: Gate,
    recognizer: Recognizer,
    start: Callable[..., Jobs],
    tmp_path: Path,
    recordings: list[tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an error the recordings of a batch are recognised one by one, and only the faulty one fails."""
    soundfile.write(tmp_path / "guilty.wav", speak("fedcba" * 2), SAMPLE_RATE)
    jobs, first, guilty = start(), job_of(recordings[0][1]), job_of(tmp_path / "guilty.wav")
    samples = round(guilty.utterance.duration * SAMPLE_RATE)
    frames = len(recognizer.model.features(torch.zeros(samples)))
    owner, name, is_guilty = {
        "features": (type(recognizer.model.features), "__call__", lambda _, waveform: len(waveform) == samples),
        "net": (recognizer.model.encoder, "forward", lambda _, lengths, taps: frames in lengths.tolist()),
        "decoder": (recognizer.decode, "evidence", lambda encoded: -(-frames // 4) in encoded.frame_counts),
    }[part]
    work = getattr(owner, name)

    def fail(*given: Any) -> object:
        if is_guilty(*given):
            raise RuntimeError("this one")
        return work(*given)

    monkeypatch.setattr(owner, name, fail)
    good = [job_of(path) for _, path in recordings[1:6]]
    jobs.submit(first)
    assert gate.reached.wait(PATIENCE)
    for job in (*good[:2], guilty, *good[2:]):
        jobs.submit(job)
    gate.open.set()
    with pytest.raises(RuntimeError, match="this one"):
        guilty.outcome.result(PATIENCE)
    assert [job.outcome.result(PATIENCE).text for job in good] == [text for text, _ in recordings[1:6]]


def test_a_failed_batch_is_not_retried_while_the_server_stops(
    gate: Gate,
    recognizer: Recognizer,
    start: Callable[..., Jobs],
    recordings: list[tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs, tried = start(), []
    first, *batch = [job_of(path) for _, path in recordings[:5]]
    jobs.submit(first)
    assert gate.reached.wait(PATIENCE)

    def fail(features: torch.Tensor, *_: object) -> object:
        tried.append(len(features))
        jobs.stop()
        raise RuntimeError

    monkeypatch.setattr(recognizer.model.encoder, "forward", fail)
    for job in batch:
        jobs.submit(job)
    gate.open.set()
    for job in batch:
        with pytest.raises(StoppedError):
            job.outcome.result(PATIENCE)
    jobs.join(PATIENCE)
    assert tried == [4]


def test_no_client_waits_for_a_stopped_thread(
    gate: Gate, start: Callable[..., Jobs], recordings: list[tuple[str, Path]]
) -> None:
    jobs = start()
    running, waiting = job_of(recordings[0][1]), job_of(recordings[1][1])
    jobs.submit(running)
    assert gate.reached.wait(PATIENCE)
    jobs.submit(waiting)
    jobs.stop()
    for job in (running, waiting):
        with pytest.raises(StoppedError):
            job.outcome.result(PATIENCE)
    with pytest.raises(StoppedError):
        jobs.submit(job_of(recordings[0][1]))
    gate.open.set()
    jobs.join(PATIENCE)
    assert not jobs.alive


def test_a_recording_beyond_the_decoders_limit_gives_its_words_segment_by_segment(
    recognizer: Recognizer, start: Callable[..., Jobs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decoder may take less audio at once than the encoder."""
    monkeypatch.setattr(recognizer.decode, "max_seconds", 2.0)
    silence = torch.zeros(SAMPLE_RATE)
    soundfile.write(tmp_path / "said.wav", torch.cat([torch.from_numpy(speak("abc")), silence] * 3), SAMPLE_RATE)
    job, heard = job_of(tmp_path / "said.wav"), []
    assert 2.0 < job.utterance.duration < 30.0
    job.on_words = lambda words: heard.append([word.text for word in words])
    start(Inference()).submit(job)
    assert job.outcome.result(PATIENCE).text == "abc abc abc"
    assert [words for words in heard if words] == [["abc"]] * 3


def test_a_recording_whose_client_has_left_is_not_recognised(
    gate: Gate, start: Callable[..., Jobs], recordings: list[tuple[str, Path]]
) -> None:
    jobs, first, left = start(), job_of(recordings[0][1]), job_of(recordings[1][1])
    jobs.submit(first)
    assert gate.reached.wait(PATIENCE)
    jobs.submit(left)
    left.gone = True  # as if the client left after the batch was formed
    gate.open.set()
    assert first.outcome.result(PATIENCE).text == recordings[0][0]
    assert left.outcome.exception(PATIENCE) is not None
    assert gate.batches == [1]
