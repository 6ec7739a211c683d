"""MP4, M4A and WebM files give the waveform that a player plays, at the times that it shows."""

import json
import logging
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asr.align import main as align
from asr.base.audio import load as audio
from asr.base.audio.find import find_audio
from asr.base.audio.load import audio_info, load_waveform, stream_waveform
from asr.base.audio.media import CODECS
from asr.base.audio.resampling import resample
from asr.base.text.word_errors import count_errors, total
from asr.convert import main as convert
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import read_manifest
from asr.core.recognition.recognizer import Recognizer
from asr.errors import AudioError, TruncatedError
from asr.evaluate import main as evaluate
from asr.shards import main as pack
from asr.transcribe import main as transcribe
from recipes.convert.__main__ import main as convert_data
from tests.conftest import SHARED
from tests.media import media_file, needs_media
from tests.nemo import MODEL, needs_model
from tests.refusals import refused
from tests.test_audio import TAGS
from tests.tones import SAMPLE_RATE as TONE_RATE
from tests.tones import speak

pytestmark = needs_media
RATE = 16000
KINDS: dict[str, dict[str, object]] = {
    "m4a": {"suffix": "m4a"},
    "mp4": {"suffix": "mp4"},
    "mp4 with a video": {"suffix": "mp4", "video_seconds": 3.0},
    "mp4 in fragments": {
        "suffix": "mp4",
        "options": {"movflags": "frag_keyframe+delay_moov", "frag_duration": "500000"},
    },
    "webm": {"suffix": "webm"},
    "webm with a video": {"suffix": "webm", "video_seconds": 3.0},
    "webm of a recorder": {"suffix": "webm", "options": {"live": "1"}},  # declares no length
}


def noise(seconds: float, rate: int = 48000, level: float = 0.1) -> np.ndarray:
    return level * np.random.default_rng(0).standard_normal(round(seconds * rate))


def with_click(rate: int, seconds: float = 3.0) -> np.ndarray:
    """Return faint noise with a click at 1.000 s."""
    waveform = noise(seconds, rate, 0.001)
    waveform[rate] = 0.9
    return waveform


def loudest(waveform: torch.Tensor) -> float:
    """Return the time of the largest sample."""
    return int(waveform.abs().argmax()) / RATE


def load(content: bytes, rate: int = RATE, **segment: float) -> torch.Tensor:
    return load_waveform("x", rate, content=content, **segment)


# ---- times


@pytest.mark.parametrize("rate", [16000, 44100, 48000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_click_is_found_where_it_is_in_a_wav(kind: str, rate: int, tmp_path: Path) -> None:
    if rate == 44100 and kind.startswith("webm"):
        rate = 24000  # Opus has no 44.1 kHz
    click = with_click(rate)
    soundfile.write(tmp_path / "click.wav", click, rate)
    for track in (click, np.stack([click, click])):
        waveform = load(media_file(track, rate=rate, **KINDS[kind]))
        assert abs(loudest(waveform) - 1.0) <= 0.005
        assert abs(loudest(waveform) - loudest(load_waveform(tmp_path / "click.wav", RATE))) <= 0.005
        assert len(waveform) == 3 * RATE


@pytest.mark.parametrize("kind", ["wav", "m4a", "webm"])
def test_a_segment_whose_channels_cancel_each_other_is_found(kind: str, tmp_path: Path) -> None:
    left = noise(4.0)
    right = np.where(np.arange(len(left)) < len(left) // 2, left, -left)  # inverted from 2 s on
    content = None if kind == "wav" else media_file(np.stack([left, right]), suffix=kind, bit_rate=256_000)
    soundfile.write(tmp_path / "x.wav", np.stack([left, right], axis=1), 48000, subtype="FLOAT")
    for start, lost in ((0.0, 0.0), (1.0, 0.5), (2.0, 1.0)):
        assert abs(audio.cancelled_power(tmp_path / "x.wav", start, 2.0, content) - lost) < 0.05, start


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_audio_that_begins_after_the_video_keeps_its_times(suffix: str) -> None:
    content = media_file(with_click(48000), suffix=suffix, video_seconds=4.0, begin=0.75)
    waveform = load(content)
    assert abs(loudest(waveform) - 1.75) <= 0.005
    assert waveform[: round(0.7 * RATE)].abs().max() < 1e-6  # resampling rings
    assert abs(len(waveform) / RATE - 3.75) <= 0.005


@pytest.mark.parametrize("kind", KINDS)
def test_silence_fills_a_gap_in_the_audio(kind: str) -> None:
    content = media_file(with_click(48000), gap=(0.5, 1.25), **KINDS[kind])
    waveform = load(content)
    assert abs(loudest(waveform) - 2.25) <= 0.005
    assert waveform[round(0.6 * RATE) : round(1.7 * RATE)].abs().max() < 1e-3
    assert abs(len(waveform) / RATE - 4.25) <= 0.03


@pytest.mark.parametrize("kind", ["mp4 in fragments", "webm of a recorder"])
def test_timestamps_that_jitter_change_no_sample(kind: str) -> None:
    """Chrome declares packets of 1008 samples that have 2880: it computes lengths from the times of arrival."""
    plain, jittered = (load(media_file(noise(3), jitter=jitter, **KINDS[kind])) for jitter in (0.0, 0.015))
    assert torch.equal(jittered[: 2 * RATE], plain[: 2 * RATE])
    assert abs(len(jittered) - len(plain)) < 0.05 * RATE


@pytest.mark.parametrize("kind", ["mp4 in fragments", "webm of a recorder"])
def test_timestamps_that_drift_are_followed_only_when_they_differ_by_half_a_second(kind: str) -> None:
    """Chrome's timestamps may drift by 120 ms in the first seconds; silence there would divide a word."""
    rate = 48000  # not resampled
    plain, slow, fast = (load(media_file(noise(3), drift=drift, **KINDS[kind]), rate) for drift in (0.0, 0.001, 0.01))
    start = next(number for number in range(1000) if torch.equal(slow[number:][: 2 * rate], plain[: 2 * rate]))
    assert start <= 0.002 * rate  # the second packet, where the audio begins in an MP4 file
    assert abs(len(slow) - len(plain)) < 0.05 * rate
    num_packets = 3 * rate / (1024 if kind.startswith("mp4") else 960)
    assert len(fast) / rate == pytest.approx(3 + 0.01 * num_packets, abs=0.55)


def test_gaps_longer_than_a_day_are_refused() -> None:
    with refused(TruncatedError, "without audio"):
        for _ in stream_waveform("x", RATE, content=media_file(noise(1), suffix="webm", gap=(0.5, 30 * 3600.0))):
            pass


# ---- samples


@pytest.mark.parametrize(
    "codec", ["aac", "ac3", "alac", "flac", "libmp3lame", "libopus", "pcm_f32le", "pcm_s16be", "pcm_s16le", "vorbis"]
)
def test_each_codec_gives_the_samples_that_were_written(codec: str) -> None:
    times = np.arange(96000) / 48000
    written = np.stack([0.4 * np.sin(2 * np.pi * (300 + 200 * times) * times), 0.2 * np.sin(2 * np.pi * 440 * times)])
    suffix = "mkv" if codec in ("vorbis", "libopus", "pcm_f32le") else "mov" if codec.startswith("pcm") else "mp4"
    content = media_file(written, suffix=suffix, codec=codec, bit_rate=128_000)
    waveform = load(content, 48000).numpy()
    info = audio_info("x", content)
    assert info[:2] == (48000, 2)
    assert info.num_samples == len(waveform)
    assert abs(len(waveform) - 96000) < 2048
    expected = written.mean(axis=0)
    if codec in ("alac", "flac", "pcm_f32le", "pcm_s16be", "pcm_s16le"):
        np.testing.assert_allclose(waveform, expected, atol=2 / 2**15)
    elif codec != "vorbis":  # FFmpeg's encoder of Vorbis declares no delay
        error = waveform[:96000] - expected
        assert np.square(error).mean() < 0.01 * np.square(expected).mean()


def test_every_codec_that_may_be_decoded_is_one_of_ffmpegs() -> None:
    import av

    assert set(CODECS) <= av.codecs_available


@pytest.mark.parametrize("kind", KINDS)
def test_a_segment_equals_the_same_slice_of_the_whole_waveform(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = media_file(np.stack([noise(3), noise(3)]), **KINDS[kind])
    rate, _, num_samples = audio_info("x", content)
    whole = load(content, rate)
    assert len(whole) == num_samples
    for offset, duration in [(0.0, 0.5), (0.001, 0.01), (1.234, 0.777), (2.9, 0.05), (1.0, 2.0)]:
        segment = load(content, rate, offset=offset, duration=duration)
        assert torch.equal(segment, whole[round(offset * rate) : round((offset + duration) * rate)])
    assert torch.equal(load(content, rate, offset=2.5), whole[round(2.5 * rate) :])
    monkeypatch.setattr(audio, "BLOCK_SAMPLES", 777)
    assert torch.equal(load(content, rate), whole)
    for offset, duration in [(2.5, 1.0), (3.5, 0.1)]:
        with refused(AudioError, f"segment ... {offset:.3f} s"):
            load(content, rate, offset=offset, duration=duration)


def test_the_first_of_several_audio_tracks_is_read_with_a_note(caplog: pytest.LogCaptureFixture) -> None:
    content = media_file(with_click(48000), noise(3), suffix="mp4")
    with caplog.at_level(logging.WARNING, "asr.base.audio.media"):
        assert abs(loudest(load_waveform("two.mp4", RATE, content=content)) - 1.0) <= 0.005
    assert ["two.mp4" in record.getMessage() for record in caplog.records if "track" in record.getMessage()] == [True]


def test_folders_are_searched_for_these_files(tmp_path: Path) -> None:
    for name in ("a.m4a", "b.MP4", "c.webm", "d.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in find_audio(tmp_path)] == ["a.m4a", "b.MP4", "c.webm"]


# ---- commands

SENTENCES = ["abcd ef", "dbcd ef", "fade bed cab"]


def spoken(text: str) -> np.ndarray:
    """Return a sentence at 48 kHz, with silence around it."""
    silence = torch.zeros(TONE_RATE // 5)
    return resample(torch.cat([silence, torch.from_numpy(speak(text)), silence]), TONE_RATE, 48000).numpy()


@pytest.fixture(scope="module", params=["m4a", "mp4", "webm"])
def manifests(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with whole.jsonl, of three files, and segments.jsonl, of one file with the same sentences."""
    folder, suffix = tmp_path_factory.mktemp(request.param), request.param
    whole, segments, start = [], [], 0.0
    for text in SENTENCES:
        waveform = spoken(text)
        name, duration = f"{text.replace(' ', '-')}.{suffix}", len(waveform) / 48000
        (folder / name).write_bytes(media_file(waveform, suffix=suffix))
        whole.append({"audio_filepath": name, "duration": duration, "text": text})
        segments.append({"audio_filepath": f"all.{suffix}", "offset": start, "duration": duration, "text": text})
        start += duration
    (folder / f"all.{suffix}").write_bytes(media_file(np.concatenate([*map(spoken, SENTENCES)]), suffix=suffix))
    for stem, lines in (("whole", whole), ("segments", segments)):
        (folder / f"{stem}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize("stem", ["whole", "segments"])
def test_manifests_and_shards_are_evaluated_and_transcribed(
    fluent: Path, manifests: Path, stem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, manifest, index = str(fluent / "run"), manifests / f"{stem}.jsonl", tmp_path / stem / "index.arrow"
    assert pack([str(manifest), "--output", str(index.parent)]) == 0
    for source in (manifest, index):
        assert evaluate([model, str(source), "--output-dir", str(tmp_path)]) == 0
        assert json.loads((tmp_path / f"{stem}.wer.json").read_text())["wer"] == 0
        capsys.readouterr()
        assert transcribe([model, str(source)]) == 0
        assert [line.partition("\t")[2] for line in capsys.readouterr().out.splitlines()] == SENTENCES


@pytest.mark.parametrize("stem", ["whole", "segments"])
def test_alignments_have_the_times_of_the_recording(
    fluent: Path, manifests: Path, stem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert align([str(fluent / "run"), str(manifests / f"{stem}.jsonl")]) == 0
    for text, line in zip(SENTENCES, capsys.readouterr().out.splitlines(), strict=True):
        words = json.loads(line)["words"]
        assert [word["text"] for word in words] == text.split()
        assert abs(words[0]["start"] - 0.2) < 0.15


def test_audio_in_a_parquet_file_is_extracted(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    files = [media_file(noise(1), suffix=suffix) for suffix in ("m4a", "webm")]
    table = pyarrow.table({"audio": [{"bytes": file} for file in files], "text": ["a", "b"]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    arguments = [
        "parquet",
        str(tmp_path / "x.parquet"),
        str(tmp_path / "x.jsonl"),
        "--audio-dir",
        str(tmp_path / "out"),
    ]
    assert convert_data(arguments) == 0
    assert [Path(line.audio_filepath).suffix for line in read_manifest(tmp_path / "x.jsonl")] == [".m4a", ".webm"]


def test_a_bulk_job_reads_a_folder(fluent: Path, manifests: Path, tmp_path: Path) -> None:
    assert transcribe([str(fluent / "run"), str(manifests), "--parts", "--output-dir", str(tmp_path / "out")]) == 0
    lines = [json.loads(line) for part in (tmp_path / "out").glob("part-*.jsonl") for line in part.open()]
    texts = {Path(line["audio_filepath"]).stem: line["text"] for line in lines}
    assert texts == {"all": " ".join(SENTENCES), **{text.replace(" ", "-"): text for text in SENTENCES}}


@pytest.mark.slow
@needs_model
@pytest.mark.parametrize("options", [{"suffix": "m4a"}, {"suffix": "mp4", "video_seconds": 1.0}, {"suffix": "webm"}])
def test_real_speech_is_recognised_as_in_a_flac(
    english: Recognizer, speech: Sequence[Path], options: dict[str, object]
) -> None:
    """At 64 kbit/s; most words that differ are errors in the FLAC too."""
    counts = []
    for path in speech:
        waveform = load_waveform(path, 48000).numpy()
        content = media_file(waveform, **options)
        texts = [english.transcribe([load(data)], sample_rate=RATE)[0].text for data in (path.read_bytes(), content)]
        counts.append(count_errors(*texts))
        assert abs(audio_info("x", content).num_samples - len(waveform)) < 1000
    assert total(counts).rate < 0.02


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    folder = tmp_path_factory.mktemp("english")
    assert convert([str(MODEL), "-o", str(folder / "english")]) == 0
    return load_recognizer(folder / "english")


@pytest.fixture(scope="module")
def speech() -> list[Path]:
    files = find_audio(SHARED / "LibriSpeech" / "test-clean-mini")
    return files[:: len(files) // 10][:10]


# ---- files that cannot be read


def test_without_pyav_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    content = media_file(noise(1))
    monkeypatch.setitem(sys.modules, "av", None)
    with refused(AudioError, "x ... av", cure="[media]'"):
        load(content)


@pytest.mark.parametrize("suffix", ["mp4", "webm"])
def test_a_video_without_audio_and_an_empty_track_are_refused(suffix: str) -> None:
    with refused(AudioError, "x ... audio track"):
        load(media_file(suffix=suffix, video_seconds=1.0))
    with refused(AudioError, "x ... audio"):
        load(media_file(np.zeros(0), suffix=suffix, video_seconds=1.0))


def test_a_codec_that_is_not_listed_is_refused_with_its_name() -> None:
    with refused(AudioError, "x ... aac ... pcm_s24le", cure="NEW.wav"):
        load(media_file(noise(1), suffix="mov", codec="pcm_s24le"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_refused(kind: str) -> None:
    content = media_file(noise(2), **KINDS[kind])
    for part in (0.1, 0.5, 0.9, 0.999):
        with refused(AudioError, "x"):
            load(content[: round(part * len(content))])


def boxes(content: bytes) -> list[int]:
    """Return the positions of the outermost boxes of an MP4 file."""
    starts = [0]
    while starts[-1] < len(content):
        starts.append(starts[-1] + int.from_bytes(content[starts[-1] : starts[-1] + 4], "big"))
    return starts[:-1]


@pytest.mark.parametrize("kind", ["m4a", "mp4 with a video", "mp4 in fragments"])
def test_an_mp4_that_is_cut_within_a_box_is_refused(kind: str) -> None:
    """A fragment is complete in itself: a file cut between two of them is read."""
    content = media_file(noise(1), **KINDS[kind])
    starts = boxes(content)
    fragments = [start for start in starts if content[start + 4 : start + 8] in (b"moof", b"mfra")]
    near = {start + offset for start in starts for offset in (*range(9), 100, 127, 128, 129)}
    near |= {len(content) - offset for offset in (1, 2, 3, 4, 7, 8, 100, 127, 128, 129, 200)}
    for cut in sorted(cut for cut in near if 0 < cut < len(content)):
        if not any(0 <= cut - start <= 3 for start in fragments):
            with refused(AudioError, "x"):
                load(content[:cut])


@pytest.mark.parametrize("tag", TAGS)
@pytest.mark.parametrize("kind", ["m4a", "mp4 with a video", "mp4 in fragments"])
def test_tags_and_a_few_bytes_after_an_mp4_are_ignored(kind: str, tag: str) -> None:
    content = media_file(noise(1), **KINDS[kind])
    assert torch.equal(load(content + TAGS[tag]), load(content))
    assert torch.equal(load(content + b"\x99" * 128), load(content))
    with refused(TruncatedError, "x"):
        load(content + b"\x99" * 129)


@pytest.mark.parametrize("kind", ["m4a", "mp4 with a video"])
def test_several_mp4_in_one_file_are_refused(kind: str) -> None:
    content = media_file(noise(1), **KINDS[kind])
    with refused(AudioError, "x"):
        load(content + content)


@pytest.mark.parametrize("tag", ["ID3v1", "APE", "ID3v2"])
@pytest.mark.parametrize("kind", ["webm", "webm of a recorder"])
def test_tags_after_a_webm_are_ignored(kind: str, tag: str) -> None:
    content = media_file(noise(1), **KINDS[kind])
    assert torch.equal(load(content + TAGS[tag]), load(content))


def test_the_content_decides_whatever_the_suffix(tmp_path: Path) -> None:
    content = media_file(noise(1))
    for name in ("x.wav", "x.mp3", "x.flac", "x"):
        (tmp_path / name).write_bytes(content)
        assert torch.equal(load_waveform(tmp_path / name, RATE), load(content))


def test_quicktime_files_may_begin_with_any_box() -> None:
    content = media_file(noise(1), suffix="mov")
    without = content[boxes(content)[1] :]
    table = without.index(b"stco") + 12
    moved = int.from_bytes(without[table : table + 4], "big") - (len(content) - len(without))
    without = without[:table] + moved.to_bytes(4, "big") + without[table + 4 :]
    assert torch.equal(load(without), load(content))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [0.2, 0.5, 0.85])
def test_a_file_with_a_damaged_part_is_refused(kind: str, part: float) -> None:
    """FFmpeg reads a WebM file as if the damaged part were not there."""
    content = bytearray(media_file(noise(5), **KINDS[kind]))
    begin, length = round(part * len(content)), len(content) // 10
    content[begin : begin + length] = bytes([0x55]) * length
    with refused(TruncatedError, "x"):
        load(bytes(content))


def declaring(content: bytes, num_packets: int) -> bytes:
    """Return an MP4 file whose tables declare a number of packets of one byte each."""
    changed = bytearray(content)
    table = content.index(b"stsz")
    changed[table + 8 : table + 16] = struct.pack(">II", 1, num_packets)
    table = content.index(b"stsc")
    changed[table + 16 : table + 20] = struct.pack(">I", num_packets)
    return bytes(changed)


def test_tables_that_declare_more_audio_than_a_file_can_hold_are_refused_without_memory_for_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.m4a").write_bytes(declaring(media_file(noise(1)), 80_000_000))  # FFmpeg would need 3 GB
    program = (
        "import resource, sys\n"
        "import av\n"
        "from asr.base.audio.load import load_waveform\n"
        "from asr.errors import AudioError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    load_waveform(sys.argv[1], 16000)\n"
        "except AudioError as error:\n"
        "    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "x.m4a")]
    kilobytes, _, message = subprocess.run(command, capture_output=True, text=True, check=True).stdout.partition(" ")
    assert int(kilobytes) < 50_000
    assert "tables declare" in message


@pytest.mark.parametrize("kind", KINDS)
def test_the_length_is_unknown_before_decoding_and_memory_holds_one_block(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(media_file(noise(20, 16000), rate=16000, **KINDS[kind]))
    assert audio_info(path, max_seconds=1.0).num_samples == audio_info(path).num_samples / 10  # two of 20 seconds
    blocks = list(stream_waveform(path, RATE, block_seconds=1.0))
    assert all(len(block) <= 1.1 * RATE for block in blocks)
    assert sum(map(len, blocks)) == 20 * RATE


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_loaded_or_refused_in_one_line(damage: Callable[[str], bytes], data: st.DataObject) -> None:
    damaged = bytearray(damage(data.draw(st.sampled_from(sorted(KINDS)))))
    for _ in range(data.draw(st.integers(1, 8))):
        area = min(data.draw(st.sampled_from([64, 600, len(damaged)])), len(damaged))
        position = data.draw(st.integers(0, area - 1))
        damaged[position if data.draw(st.booleans()) else -1 - position] = data.draw(st.integers(0, 255))
    try:
        waveform = load(bytes(damaged))
    except AudioError as error:
        message = str(error)
        assert message.startswith("x: ")
        assert message.isprintable()
    else:
        assert waveform.numel() > 0
        assert waveform.isfinite().all()


@pytest.fixture(scope="module")
def damage() -> Callable[[str], bytes]:
    files = {kind: media_file(noise(0.5), **options) for kind, options in KINDS.items()}
    return files.__getitem__
