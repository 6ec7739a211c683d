"""Audio and manifests at URLs: results equal those for local files, and a failing store causes a one-line error."""

import json
from pathlib import Path

import pytest
import soundfile
import torch

from asr.base.audio.find import find_audio_objects
from asr.base.audio.load import audio_info, load_waveform
from asr.base.storage import session
from asr.base.storage.store import write_whole
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import read_manifest
from asr.core.data.recordings import RecordingList
from asr.core.evaluation.utterances import read_scored
from asr.errors import AudioError, InputError, StoreError
from asr.evaluate import main as evaluate
from asr.transcribe import main as transcribe
from tests.conftest import ROOT
from tests.forked import run_module
from tests.refusals import mentions, refused
from tests.storing import FaultyProxy, storage
from tests.tones import SAMPLE_RATE, speak

BUNDLE = str(ROOT / "tests" / "bundles" / "format-11")
SIGNATURE = "X-Amz-Signature=5ec2e7"


@pytest.fixture
def corpus(tmp_path: Path, s3: FaultyProxy) -> Path:
    """A manifest and its audio in several formats, in a folder and at s3://bucket/corpus."""
    lines = []
    for number, suffix in enumerate(("wav", "flac", "ogg", "mp3")):
        path = tmp_path / "audio" / f"{number}.{suffix}"
        path.parent.mkdir(exist_ok=True)
        soundfile.write(path, speak("abcd ef"), SAMPLE_RATE)
        seconds = soundfile.info(path).duration
        entry = {
            "audio_filepath": f"audio/{number}.{suffix}",
            "duration": seconds,
            "text": "abcd ef",
            "id": str(number),
        }
        lines.append(json.dumps(entry) + "\n")
    (tmp_path / "corpus.jsonl").write_text("\ufeff" + "\n".join(lines))
    for path in (tmp_path / "corpus.jsonl", *sorted((tmp_path / "audio").iterdir())):
        write_whole(f"s3://bucket/corpus/{path.relative_to(tmp_path)}", path)
    return tmp_path


@pytest.mark.parametrize("suffix", ["0.wav", "1.flac", "2.ogg", "3.mp3"])
@pytest.mark.parametrize("segment", [{}, {"offset": 0.11, "duration": 0.2}], ids=["whole", "segment"])
def test_audio_at_a_url_and_in_a_file_is_decoded_to_identical_samples(
    corpus: Path, s3: FaultyProxy, suffix: str, segment: dict[str, float]
) -> None:
    file = corpus / "audio" / suffix
    url = f"s3://bucket/corpus/audio/{suffix}"
    signed = url.replace("s3://", f"http://127.0.0.1:{s3.port}/") + "?" + SIGNATURE
    expected = load_waveform(file, 16_000, **segment)  # type: ignore[arg-type]
    for given in (url, signed):
        assert torch.equal(load_waveform(given, 16_000, **segment), expected)  # type: ignore[arg-type]
        assert audio_info(given) == audio_info(file)
    assert torch.equal(load_waveform("shard:7", 16_000, **segment, content=file.read_bytes()), expected)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", ["truncated", "0 bytes", "libsndfile"])
def test_damaged_audio_at_a_url_causes_an_audio_error_that_names_the_url(corpus: Path, reason: str) -> None:
    content = (corpus / "audio" / "0.wav").read_bytes()
    damaged = {"truncated": content[: len(content) // 2], "0 bytes": b"", "libsndfile": b"noise" * 100}[reason]
    write_whole("s3://bucket/damaged.wav", damaged)
    with refused(AudioError, f"s3://bucket/damaged.wav ... {reason}"):
        load_waveform("s3://bucket/damaged.wav", 16_000)


def test_a_store_that_cannot_deliver_audio_causes_no_audio_error(corpus: Path) -> None:
    with refused(StoreError, "s3://bucket/corpus/audio/none.wav: 404"):
        load_waveform("s3://bucket/corpus/audio/none.wav", 16_000)


def test_a_manifest_at_a_url_equals_the_local_one_except_that_its_audio_is_at_urls(corpus: Path) -> None:
    of_file, of_url = read_manifest(corpus / "corpus.jsonl"), read_manifest("s3://bucket/corpus/corpus.jsonl")
    assert [line.audio_filepath for line in of_url] == [
        line.audio_filepath.replace(str(corpus), "s3://bucket/corpus") for line in of_file
    ]
    assert [(line.id, line.duration, line.text) for line in of_url] == [
        (line.id, line.duration, line.text) for line in of_file
    ]


def test_a_manifest_at_a_url_is_fetched_once_when_it_is_indexed(corpus: Path, s3: FaultyProxy, tmp_path: Path) -> None:
    s3.requests.clear()
    indexed = IndexCache(tmp_path).utterances("s3://bucket/corpus/corpus.jsonl")
    assert [method for method, path, _ in s3.requests if "corpus.jsonl" in path] == ["GET"]
    assert list(indexed) == read_manifest("s3://bucket/corpus/corpus.jsonl")


def test_a_bad_line_of_a_manifest_at_a_url_is_named_without_the_signature(s3: FaultyProxy) -> None:
    write_whole("s3://bucket/bad.jsonl", b'{"audio_filepath": "a.wav", "text": ""}\n')
    url = f"http://127.0.0.1:{s3.port}/bucket/bad.jsonl"
    with pytest.raises(InputError) as caught:
        read_manifest(f"{url}?{SIGNATURE}")
    assert mentions(str(caught.value), f"{url}:1 ... missing duration")


def test_signatures_of_audio_are_not_part_of_ids(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(
        json.dumps({"audio_filepath": f"https://h/a.wav?{SIGNATURE}", "duration": 1, "text": ""})
    )
    [line] = read_manifest(tmp_path / "m.jsonl")
    assert line.id == "https://h/a.wav"
    assert line.audio_filepath.endswith(SIGNATURE)


def test_noise_recordings_can_be_at_a_url(corpus: Path) -> None:
    for given in ("s3://bucket/corpus/corpus.jsonl", "s3://bucket/corpus/audio"):
        recordings = RecordingList(given, "augment.noise.path")
        assert len(recordings) == 4
        assert torch.equal(recordings.whole(0, 16_000), load_waveform(corpus / "audio" / "0.wav", 16_000))


def test_audio_below_a_url_is_found(corpus: Path) -> None:
    assert find_audio_objects("s3://bucket/corpus") == [
        f"s3://bucket/corpus/audio/{name}" for name in ("0.wav", "1.flac", "2.ogg", "3.mp3")
    ]
    with refused(AudioError, "s3://bucket/none ... audio"):
        find_audio_objects("s3://bucket/none")


def test_transcribing_urls_gives_the_same_texts_as_transcribing_files(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for root in (str(corpus), "s3://bucket/corpus"):
        paths = [f"{root}/corpus.jsonl", f"{root}/audio", f"{root}/audio/1.flac"]
        assert transcribe([BUNDLE, *paths, "--device", "cpu"]) == 0
        printed.append(capsys.readouterr().out.replace(root, "ROOT"))
    assert len(printed[0].splitlines()) == 9
    assert printed[0] == printed[1]


def test_transcripts_are_written_to_the_same_sub_folders_as_the_audio_has_below_the_url(corpus: Path) -> None:
    out = corpus / "out"
    paths = ["s3://bucket/corpus", "--output-dir", str(out), "--device", "cpu", "--num-workers", "2"]
    assert transcribe([BUNDLE, *paths]) == 0
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.txt")) == [f"audio/{n}.txt" for n in range(4)]


def test_evaluating_a_manifest_at_a_url_gives_the_same_results_as_a_local_manifest(
    corpus: Path, s3: FaultyProxy
) -> None:
    signed = f"http://127.0.0.1:{s3.port}/bucket/corpus/signed.jsonl?{SIGNATURE}"
    lines = [json.loads(line) for line in (corpus / "corpus.jsonl").read_text("utf-8-sig").splitlines() if line]
    for line in lines:
        line["audio_filepath"] = f"http://127.0.0.1:{s3.port}/bucket/corpus/{line['audio_filepath']}?{SIGNATURE}"
    write_whole("s3://bucket/corpus/signed.jsonl", "\n".join(map(json.dumps, lines)).encode())
    scores = []
    for name, given in (
        ("corpus", str(corpus / "corpus.jsonl")),
        ("corpus", "s3://bucket/corpus/corpus.jsonl"),
        ("signed", signed),
    ):
        out = corpus / f"out-{len(scores)}"
        page = out / "report.html"
        assert evaluate([BUNDLE, given, "--output-dir", str(out), "--report", str(page), "--device", "cpu"]) == 0
        scored = read_scored(out / f"{name}.utterances.jsonl")
        scores.append([(line.utterance.id, line.transcript, line.counts) for line in scored])
        for path in out.iterdir():
            assert SIGNATURE not in path.read_text()
    assert scores[0] == scores[1] == scores[2]
    write_whole("s3://bucket/scored.jsonl", (corpus / "out-1" / "corpus.utterances.jsonl"))
    assert len(read_scored("s3://bucket/scored.jsonl")) == 4


@pytest.mark.parametrize("num_workers", ["0", "2"])
@pytest.mark.parametrize("command", ["transcribe", "evaluate"])
def test_expired_credentials_end_a_command_in_one_line(
    corpus: Path, s3: FaultyProxy, command: str, num_workers: str
) -> None:
    s3.faults.extend([""])  # the manifest is still delivered
    s3.forever = "expired"
    arguments = [BUNDLE, "s3://bucket/corpus/corpus.jsonl", "--device", "cpu", "--num-workers", num_workers]
    done = run_module(f"asr.{command}", *arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: s3://bucket/corpus/audio/")
    assert "403 Forbidden, ExpiredToken" in line
    assert done.stdout == ""


def test_the_configured_time_limit_of_a_store_is_used(s3: FaultyProxy) -> None:
    session.configure(storage(retry_seconds=0, timeout_seconds=5))
    s3.forever = "slow_down"
    with refused(StoreError, "SlowDown"):
        read_manifest("s3://bucket/x.jsonl")
    assert len(s3.requests) == 1
