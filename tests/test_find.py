"""Recordings are known by their content; whatever else is in a folder is counted, not silently left out."""

import json
import logging
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.apps.bulk.source import open_source
from asr.apps.finetune.collect import collect
from asr.apps.finetune.entry import SourceOptions
from asr.apps.shards.foreign import index_webdataset
from asr.base.audio.encode import encode_audio
from asr.base.audio.find import begins_as_audio, find_audio, is_recording
from asr.core.data.recordings import RecordingList
from asr.errors import AudioError, InputError
from tests.media import media_file, needs_media
from tests.refusals import mentions, refused

RATE = 16000
SAMPLES = (0.1 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
FORMATS = {
    **{name: (name.upper(), "PCM_16") for name in ("wav", "rf64", "w64", "aiff", "caf", "flac", "au", "nist", "voc")},
    "wavex": ("WAVEX", "PCM_16"),
    "8svx": ("SVX", "PCM_16"),
    "paf": ("PAF", "PCM_16"),
    "ircam": ("IRCAM", "PCM_16"),
    "vorbis": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
NOT_AUDIO = {
    "text": b"RIFF is a format. FORM, too.",
    "text that begins like a tag": b"ID3 tags follow the audio",
    "text in UTF-16": "He could wait no longer".encode("utf-16"),
    "text in UTF-8 with a mark": "He could wait".encode("utf-8-sig"),
    "JSON": b'{"audio": "a.wav"}',
    "docx": b"PK\3\4\x14\0\6\0\10\0\0\0!\0\x32\x91",
    "PDF": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n",
    "JPEG": b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1",
    "PNG": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "WebP": b"RIFF\x24\0\0\0WEBPVP8 ",
    "HEIF": b"\0\0\0\x18ftypheic\0\0\0\0",
    "AVIF": b"\0\0\0\x1cftypavif\0\0\0\0",
    "MIDI": b"MThd\0\0\0\6\0\1\0\2\1\xe0MT",
    "tar": b"a.txt".ljust(512, b"\0"),
    "gzip": b"\x1f\x8b\x08\0\0\0\0\0\0\3",
    "zeros": bytes(512),
    "nothing": b"",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a FLAC, a WAV with another suffix, a WAV without one, and other files."""
    root = tmp_path / "folder"
    (root / "b").mkdir(parents=True)
    wav = encode_audio(SAMPLES, RATE, "WAV", "PCM_16")
    (root / "a.flac").write_bytes(encode_audio(SAMPLES, RATE, "FLAC", "PCM_16"))
    (root / "b" / "rec.bwf").write_bytes(wav)
    (root / "nameless").write_bytes(wav)
    (root / ".hidden").write_bytes(wav)
    for name in ("notes.docx", "more.DOCX", "b/list.txt"):
        (root / name).write_bytes(NOT_AUDIO["docx"])
    os.mkfifo(root / "pipe")
    return root


NAMES = ["a.flac", "b/rec.bwf", "nameless"]


@pytest.mark.parametrize("name", FORMATS)
def test_the_content_of_each_format_is_recognised_whatever_the_name(name: str, tmp_path: Path) -> None:
    container, encoding = FORMATS[name]
    (tmp_path / "x.dat").write_bytes(encode_audio(SAMPLES, RATE, container, encoding))
    assert is_recording(tmp_path / "x.dat")


@needs_media
@pytest.mark.parametrize("suffix", ["m4a", "mp4", "mov", "webm", "mkv"])
def test_the_content_of_media_is_recognised(suffix: str) -> None:
    assert begins_as_audio(media_file(SAMPLES, suffix=suffix, rate=RATE)[:16])


@pytest.mark.parametrize("name", NOT_AUDIO)
def test_other_content_is_no_recording(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.dat").write_bytes(NOT_AUDIO[name])
    assert not is_recording(tmp_path / "x.dat")


def test_a_file_with_the_name_of_a_recording_is_one_so_that_damage_is_reported(tmp_path: Path) -> None:
    for name in ("empty.wav", "text.WMA", "x.3gp"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "broken.mp3").symlink_to(tmp_path / "gone")
    assert len(find_audio(tmp_path)) == 4


def read_finetune(folder: Path) -> list[str]:
    for name in NAMES:
        (folder / name).with_suffix(".TXT").write_text("words")
    collected = collect(folder, SourceOptions(), None, lambda problem: None)
    assert mentions(collected.description, "dropped ... 2 .docx files ... 1 .txt file ... name")
    return [str(utterance.audio_filepath) for utterance in collected.utterances]


READERS: dict[str, Callable[[Path], list[str]]] = {
    "folders": lambda folder: [str(path) for path in find_audio(folder)],
    "noise": lambda folder: [line.audio_filepath for line in RecordingList(folder, "path").utterances],
    "bulk jobs": lambda folder: [line.audio_filepath for line in open_source(str(folder)).utterances],
    "texts beside recordings": read_finetune,
}


@pytest.mark.parametrize("reader", READERS)
def test_each_reader_of_folders_finds_the_same_recordings(reader: str, folder: Path) -> None:
    assert READERS[reader](folder) == [str(folder / name) for name in NAMES]


def test_files_that_are_not_recordings_are_counted_by_suffix_in_one_line(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        find_audio(folder)
    [record] = caplog.records
    assert mentions(record.getMessage(), f"{folder} ... 4 files ... 2 .docx ... 1 .txt")


def test_a_folder_of_recordings_alone_needs_no_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    soundfile.write(tmp_path / "a.wav", SAMPLES, RATE)
    (tmp_path / ".DS_Store").touch()
    with caplog.at_level(logging.WARNING):
        find_audio(tmp_path)
    assert not caplog.records


def test_a_folder_without_recordings_is_refused_with_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "a.docx").touch()
    with refused(AudioError, f"{tmp_path} ... .wav ... 1 other file ... 1 .docx"):
        find_audio(tmp_path)


def shard(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            source = path.with_name("member")
            source.write_bytes(content)
            archive.add(source, name)
    return str(path)


WAV = encode_audio(SAMPLES, RATE, "WAV", "PCM_16")


@pytest.mark.parametrize("name", ["0.wav", "0.bwf", "0.audio", "0.mic.wav"])
def test_a_sample_of_a_shard_has_its_recording_under_any_name(name: str, tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", {name: WAV, "0.txt": b"words", "0.json": json.dumps({"id": "x"}).encode()})
    [utterance] = index_webdataset([path], lambda: None)
    assert (utterance.text, utterance.duration, utterance.extent and utterance.extent.num_bytes) == ("words", 1, 32044)


def test_a_sample_of_a_shard_with_no_or_several_recordings_is_refused(tmp_path: Path) -> None:
    for members in ({"0.dat": b"abc"}, {"0.bwf": WAV, "0.audio": WAV}, {"0.wav": WAV, "0.mov": WAV}):
        with refused(InputError, "a.tar: 0 ... audio file"):
            list(index_webdataset([shard(tmp_path / "a.tar", members | {"0.txt": b"words"})], lambda: None))
