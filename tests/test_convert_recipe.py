"""recipes.convert: a small corpus in each format becomes the same manifest; errors name the file and line."""

import argparse
import csv
import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.apps.finetune.formats import FORMATS
from asr.core.data.manifest import Utterance, read_manifest
from asr.errors import InputError
from asr.plan import plan
from recipes.convert.__main__ import _add_options, _convert, main
from tests.conftest import TINY, settings_with, tone_corpus
from tests.refusals import mentions, refused
from tests.tones import SAMPLE_RATE, sentences, speak

TEXTS = sentences(6, seed=4, words=(2, 3))
NAMES = [f"utterance-{number}" for number in range(len(TEXTS))]
SECONDS = [len(speak(text)) / SAMPLE_RATE for text in TEXTS]


def write_audio(folder: Path, suffix: str = "wav") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.{suffix}" for name in NAMES]
    for path, text in zip(paths, TEXTS, strict=True):
        soundfile.write(path, speak(text), SAMPLE_RATE)
    return paths


def convert(kind: str, source: Path, *more: str) -> list[Utterance]:
    manifest = source.parent / "converted.jsonl"
    assert main([kind, str(source), str(manifest), *more]) == 0
    return read_manifest(manifest)


def kaldi(folder: Path) -> Path:
    paths = write_audio(folder / "audio")
    data = folder / "data"
    data.mkdir()
    write = lambda name, values: (data / name).write_text("".join(map("{} {}\n".format, NAMES, values)))  # noqa: E731
    write("wav.scp", paths)
    write("text", TEXTS)
    write("utt2spk", [name[-1] for name in NAMES])
    return data


def common_voice(folder: Path) -> Path:
    write_audio(folder / "clips", "mp3")
    rows = [f"{name[-1]}\t{name}.mp3\t{text}\t2\n" for name, text in zip(NAMES, TEXTS, strict=True)]
    (folder / "validated.tsv").write_text("client_id\tpath\tsentence\tup_votes\n" + "".join(rows))
    return folder / "validated.tsv"


def audio_folder(folder: Path) -> Path:
    write_audio(folder / "train")
    with (folder / "train" / "metadata.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file_name", "transcription", "speaker_id"])
        writer.writerows([f"{name}.wav", text, name[-1]] for name, text in zip(NAMES, TEXTS, strict=True))
    return folder / "train"


def audio_folder_jsonl(folder: Path) -> Path:
    write_audio(folder / "train" / "a")
    rows = [
        {"file_name": f"a/{name}.wav", "text": text, "speaker": name[-1]}
        for name, text in zip(NAMES, TEXTS, strict=True)
    ]
    (folder / "train" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "train"


def nemo(folder: Path) -> Path:
    paths = write_audio(folder / "audio")
    rows = [
        {"audio_filepath": str(path), "duration": seconds, "text": text, "speaker": name[-1], "lang": "en"}
        for path, seconds, text, name in zip(paths, SECONDS, TEXTS, NAMES, strict=True)
    ]
    (folder / "manifest.json").write_text("\n".join(map(json.dumps, rows)))
    return folder / "manifest.json"


def lhotse(folder: Path) -> Path:
    paths = write_audio(folder / "audio")
    rows = []
    for path, seconds, text, name in zip(paths, SECONDS, TEXTS, NAMES, strict=True):
        source = {"type": "file", "channels": [0], "source": str(path)}
        recording = {"id": f"r-{name}", "sources": [source], "sampling_rate": SAMPLE_RATE, "duration": seconds}
        supervision = {"id": f"s-{name}", "recording_id": f"r-{name}", "start": 0.0, "duration": seconds, "text": text}
        cut = {"id": name, "start": 0, "duration": seconds, "channel": 0, "type": "MonoCut", "recording": recording}
        rows.append(cut | {"supervisions": [supervision | {"speaker": name[-1]}]})
    with gzip.open(folder / "cuts.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    return folder / "cuts.jsonl.gz"


def ljspeech(folder: Path) -> Path:
    write_audio(folder / "wavs")
    rows = [f"{name}|As written: {text}|{text}\n" for name, text in zip(NAMES, TEXTS, strict=True)]
    (folder / "metadata.csv").write_text("".join(rows))
    return folder


def librispeech(folder: Path) -> Path:
    for path in write_audio(folder / "corpus" / "0" / "1", "flac"):
        with (path.parent / "0-1.trans.txt").open("a") as file:
            file.write(f"{path.stem} {TEXTS[NAMES.index(path.stem)]}\n")
    return folder / "corpus"


def table(folder: Path) -> Path:
    write_audio(folder / "audio")
    rows = [f'{name};audio/{name}.wav;"{text}";{name[-1]}\r\n' for name, text in zip(NAMES, TEXTS, strict=True)]
    (folder / "speech.csv").write_text("\ufeffID;Path;Sentence;Speaker\r\n" + "".join(rows), newline="")
    return folder / "speech.csv"


def text_files(folder: Path) -> Path:
    for path, text in zip(write_audio(folder / "corpus"), TEXTS, strict=True):
        path.with_suffix(".txt").write_text(f"{text}\n")
    return folder / "corpus"


def label_studio(folder: Path) -> Path:
    write_audio(folder / "upload" / "3")
    tasks = []
    for name, text in zip(NAMES, TEXTS, strict=True):
        result = {"id": "r", "type": "textarea", "from_name": "transcription", "value": {"text": [text]}}
        annotation = {"id": 1, "completed_by": 1, "was_cancelled": False, "ground_truth": False, "result": [result]}
        data = {"audio": f"/data/upload/3/{name}.wav"}
        tasks.append({"id": name, "data": data, "annotations": [annotation], "predictions": []})
    (folder / "upload" / "export.json").write_text(json.dumps(tasks))
    return folder / "upload" / "export.json"


SOURCES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "kaldi": ("kaldi", kaldi),
    "common_voice": ("common_voice", common_voice),
    "audio_folder": ("audio_folder", audio_folder),
    "audio_folder_jsonl": ("audio_folder", audio_folder_jsonl),
    "nemo": ("nemo", nemo),
    "manifest": ("manifest", nemo),
    "librispeech": ("librispeech", librispeech),
    "table": ("table", table),
    "text_files": ("text_files", text_files),
    "label_studio": ("label_studio", label_studio),
    "lhotse": ("lhotse", lhotse),
    "ljspeech": ("ljspeech", ljspeech),
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("is_named", [True, False])
def test_each_format_becomes_the_same_manifest_named_or_recognised(source: str, is_named: bool, tmp_path: Path) -> None:
    kind, make = SOURCES[source]
    utterances = convert(kind if is_named else "auto", make(tmp_path))
    assert [utterance.text for utterance in utterances] == TEXTS
    assert [utterance.duration for utterance in utterances] == pytest.approx(
        SECONDS, abs=0.06 if kind == "common_voice" else 1e-6
    )
    assert [Path(utterance.audio_filepath).stem for utterance in utterances] == NAMES
    assert all(Path(utterance.audio_filepath).is_file() and utterance.offset is None for utterance in utterances)
    speakers = dict.fromkeys(("ljspeech", "text_files", "label_studio")) | {"librispeech": "utterance"}
    assert [utterance.speaker for utterance in utterances] == [speakers.get(kind, name[-1]) for name in NAMES]
    if kind not in ("nemo", "manifest"):  # this manifest has no ids
        assert [utterance.id for utterance in utterances] == NAMES


def test_a_converted_corpus_can_be_used_for_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    utterances = convert("kaldi", kaldi(tmp_path))
    manifest = tmp_path / "converted.jsonl"
    everywhere = [f"corpus.{split}=[{manifest.name}]" for split in ("train", "valid", "test")]
    plan(settings_with(*TINY, *tone_corpus(tmp_path), *everywhere, "trainer.max_epochs=6", "run_dir=/nowhere/run"))
    assert f"{len(utterances)} of {len(utterances)} training utterances" in capsys.readouterr().out


def test_kaldi_segments_become_segments_of_recordings(tmp_path: Path) -> None:
    data = kaldi(tmp_path)
    (data / "wav.scp").write_text("long ../audio/utterance-0.wav\n")
    (data / "text").write_text("a one\nb two\n")
    (data / "segments").write_text("a long 0.1 0.25\nb long 0.3 -1\n")
    a, b = convert("kaldi", data)
    assert (a.offset, a.duration, a.text) == (0.1, 0.15, "one")
    assert (b.offset, b.duration) == (0.3, pytest.approx(SECONDS[0] - 0.3))


def test_lines_with_ids_that_are_not_utf_8_or_not_strings_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = kaldi(tmp_path)
    for name in ("wav.scp", "text", "utt2spk"):
        content = (data / name).read_bytes()
        (data / name).write_bytes(content.replace(NAMES[0].encode(), NAMES[0].encode() + b"\xff"))
    assert main(["kaldi", str(data), str(tmp_path / "out.jsonl")]) == 1
    assert mentions(capsys.readouterr().err, "/text:1 ... id; got 'utterance-0\\udcff'")
    source = lhotse(tmp_path / "lhotse")
    with gzip.open(source, "rt") as file:
        cuts = [json.loads(line) for line in file]
    odd = [cuts[0] | {"id": ["a"]}, *cuts[1:]]
    (tmp_path / "cuts.jsonl").write_text("\n".join(map(json.dumps, odd)))
    assert (
        main(["lhotse", str(tmp_path / "cuts.jsonl"), str(tmp_path / "out.jsonl"), "--root", str(source.parent)]) == 1
    )
    assert mentions(capsys.readouterr().err, "cuts.jsonl:1 ... id; got ['a']")
    (tmp_path / "recordings.jsonl").write_text(json.dumps(cuts[0]["recording"] | {"id": ["r"]}))
    supervision = {"id": "s", "recording_id": "r", "start": 0, "duration": 1, "text": "x"}
    (tmp_path / "supervisions.jsonl").write_text(json.dumps(supervision))
    more = ["--recordings", str(tmp_path / "recordings.jsonl")]
    assert main(["lhotse", str(tmp_path / "supervisions.jsonl"), str(tmp_path / "out.jsonl"), *more]) == 1
    assert mentions(capsys.readouterr().err, "recordings.jsonl:1 ... id; got ['r']")


def test_the_name_of_an_audio_file_may_contain_any_bytes(tmp_path: Path) -> None:
    data = kaldi(tmp_path)
    old = os.fsencode(tmp_path / "audio" / f"{NAMES[0]}.wav")
    os.rename(old, old.replace(b".wav", b"\xff.wav"))
    content = (data / "wav.scp").read_bytes()
    (data / "wav.scp").write_bytes(content.replace(f"{NAMES[0]}.wav".encode(), NAMES[0].encode() + b"\xff.wav"))
    utterances = convert("kaldi", data)
    assert [utterance.id for utterance in utterances] == NAMES
    assert all(Path(utterance.audio_filepath).is_file() for utterance in utterances)


def test_lhotse_supervisions_are_matched_with_their_recordings(tmp_path: Path) -> None:
    with gzip.open(lhotse(tmp_path), "rt") as file:
        cuts = [json.loads(line) for line in file]
    for name, rows in (
        ("recordings", [cut["recording"] for cut in cuts]),
        ("supervisions", [cut["supervisions"][0] | {"start": 0.05, "duration": 0.2} for cut in cuts]),
    ):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    utterances = convert("lhotse", tmp_path / "supervisions.jsonl", "--recordings", str(tmp_path / "recordings.jsonl"))
    assert [(utterance.id, utterance.offset, utterance.duration, utterance.text) for utterance in utterances] == [
        (f"s-{name}", 0.05, 0.2, text) for name, text in zip(NAMES, TEXTS, strict=True)
    ]


def test_a_data_set_written_by_hugging_faces_library_is_converted(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets: pip install datasets")
    audio = [{"bytes": path.read_bytes(), "path": path.name} for path in write_audio(tmp_path / "audio")]
    speakers = [int(name[-1]) for name in NAMES]
    made = datasets.Dataset.from_dict({"audio": audio, "transcription": TEXTS, "speaker_id": speakers})
    made = made.cast_column("audio", datasets.Audio(decode=False))
    (tmp_path / "data").mkdir()
    made.to_parquet(tmp_path / "data" / "train-00000-of-00001.parquet")
    utterances = convert("parquet", tmp_path / "data", "--audio-dir", str(tmp_path / "out"))
    assert [utterance.text for utterance in utterances] == TEXTS
    assert [utterance.duration for utterance in utterances] == pytest.approx(SECONDS)
    assert [utterance.speaker for utterance in utterances] == [name[-1] for name in NAMES]


def test_an_audio_folder_is_read_as_hugging_faces_library_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("torchcodec", reason="needs torchcodec, with which datasets reads audio", exc_type=Exception)
    datasets = pytest.importorskip("datasets", reason="needs Hugging Face's datasets: pip install datasets")
    folder = audio_folder(tmp_path)
    loaded = datasets.load_dataset("audiofolder", data_dir=str(folder), cache_dir=str(tmp_path / "cache"))["train"]
    loaded = loaded.cast_column("audio", datasets.Audio(decode=False))
    rows = sorted((Path(row["audio"]["path"]).name, row["transcription"]) for row in loaded)
    assert rows == [
        (Path(utterance.audio_filepath).name, utterance.text) for utterance in convert("audio_folder", folder)
    ]


def test_parquet_files_written_by_pyarrow_are_converted(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet as parquet

    audio = [{"bytes": path.read_bytes(), "path": path.name} for path in write_audio(tmp_path / "audio", "flac")]
    audio[3]["bytes"] = b"a page of an error"
    table = pyarrow.table({"audio": audio, "sentence": TEXTS, "id": NAMES})
    parquet.write_table(table, tmp_path / "x.parquet")
    arguments = ["parquet", str(tmp_path / "x.parquet"), str(tmp_path / "converted.jsonl")]
    assert main(arguments) == 1  # without --audio-dir, the audio cannot be extracted
    assert main([*arguments, "--audio-dir", str(tmp_path / "out"), "--skip-bad"]) == 0
    utterances = read_manifest(tmp_path / "converted.jsonl")
    assert [utterance.id for utterance in utterances] == [name for name in NAMES if name != NAMES[3]]
    assert Path(utterances[0].audio_filepath).read_bytes() == audio[0]["bytes"]


def parquet_file(path: Path, audio: list[bytes], **options: Any) -> Path:
    import pyarrow
    import pyarrow.parquet as parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"text of {path.parent.name} {path.stem}"] * len(audio)
    parquet.write_table(pyarrow.table({"audio": audio, "text": texts}), path, **options)
    return path


def main_raising(arguments: list[str]) -> None:
    """Run the command, and raise its error instead of printing it."""
    parser = argparse.ArgumentParser()
    _add_options(parser.add_argument)
    _convert(parser.parse_args(arguments))


def test_parquet_files_with_similar_names_keep_their_own_audio(tmp_path: Path) -> None:
    sounds = [path.read_bytes() for path in write_audio(tmp_path / "audio", "flac")]
    parquet_file(tmp_path / "data" / "en" / "train.parquet", [sounds[0]])
    parquet_file(tmp_path / "data" / "en_train.parquet", [sounds[1]])
    parquet_file(tmp_path / "data" / "de" / "train.parquet", [sounds[2]])
    arguments = ["parquet", str(tmp_path / "data"), str(tmp_path / "m.jsonl"), "--audio-dir", str(tmp_path / "out")]
    assert main(arguments) == 0
    audio = {line.text: Path(line.audio_filepath).read_bytes() for line in read_manifest(tmp_path / "m.jsonl")}
    texts = ["text of en train", "text of data en_train", "text of de train"]
    assert audio == dict(zip(texts, sounds[:3], strict=True))
    (tmp_path / "data" / "en_train.parquet").rename(tmp_path / "data" / "en train.parquet")
    parquet_file(tmp_path / "data" / "en+train.parquet", [sounds[1]])
    with refused(InputError, "audio would ... train.parquet"):
        main_raising(arguments)


def test_a_small_parquet_file_cannot_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary page stores one value for many rows, and zstd compresses repetitive pages to almost nothing."""
    monkeypatch.setattr("asr.apps.finetune.parquet.SPARE_BYTES", 1 << 20)
    silence = b"RIFF" + bytes(100_000)
    repeated = parquet_file(tmp_path / "repeated.parquet", [silence] * 100)
    values = [silence + bytes([number]) for number in range(100)]
    shrunk = parquet_file(tmp_path / "shrunk.parquet", values, compression="zstd", use_dictionary=False)
    for file in (repeated, shrunk):
        assert file.stat().st_size < 150_000
        arguments = ["parquet", str(file), str(tmp_path / "m.jsonl"), "--audio-dir", str(tmp_path / "out")]
        with refused(InputError, "20 ... 1 ... unpack"):
            main_raising(arguments)
        written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.wav"))
        assert written <= 20 * file.stat().st_size + (2 << 20)
        assert not (tmp_path / "m.jsonl").exists()


def link_to(path: Path, target: Path) -> None:
    """Replace a file or folder by a symbolic link to it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def test_audio_from_parquet_files_replaces_only_earlier_output_of_the_recipe(tmp_path: Path) -> None:
    sound = write_audio(tmp_path / "audio", "flac")[0].read_bytes()
    file, out = parquet_file(tmp_path / "train.parquet", [sound]), tmp_path / "out"
    arguments = ["parquet", str(file), str(tmp_path / "m.jsonl"), "--audio-dir", str(out)]
    (out / "train").mkdir(parents=True)
    (out / "train" / "00000001.flac").write_bytes(b"mine")
    with refused(InputError, "--audio-dir ... recipes.convert"):
        main_raising(arguments)
    assert (out / "train" / "00000001.flac").read_bytes() == b"mine"
    for target in (tmp_path / "audio", tmp_path / "absent"):
        link_to(out / "train", target)
        with refused(InputError, "--audio-dir ... recipes.convert"):
            main_raising(arguments)
    (out / "train").unlink()
    for _ in range(2):  # the second run replaces the output of the first
        assert main(arguments) == 0
    mine = tmp_path / "mine.flac"
    mine.write_bytes(b"mine")
    link_to(out / "train" / "00000001.flac", mine)
    with refused(InputError, "00000001.flac ... --audio-dir"):
        main_raising(arguments)
    assert mine.read_bytes() == b"mine"


def test_kaldi_segments_may_not_exceed_their_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = kaldi(tmp_path)
    (data / "wav.scp").write_text("long ../audio/utterance-0.wav\n")
    (data / "text").write_text("a one\nb two\n")
    for late in (10.0, 0.51):
        segments = f"a long 0.1 {SECONDS[0] + late}\nb long 0.1 {SECONDS[0] + 0.005}\n"
        (data / "segments").write_text(segments)
        assert main(["kaldi", str(data), str(tmp_path / "m.jsonl")]) == 1
        message = capsys.readouterr().err
        assert mentions(message, "text:1 ... utterance ... utterance-0.wav")
        assert main(["kaldi", str(data), str(tmp_path / "m.jsonl"), "--skip-bad"]) == 0
        assert [line.id for line in read_manifest(tmp_path / "m.jsonl")] == ["b"], "times are rounded to 10 ms"


def test_kaldi_segments_that_exceed_their_recording_by_half_a_second_are_cut_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kaldi's extract-segments cuts such segments, too."""
    data = kaldi(tmp_path)
    (data / "wav.scp").write_text("long ../audio/utterance-0.wav\n")
    (data / "text").write_text("a one\nb two\nc three\n")
    seconds = SECONDS[0]
    (data / "segments").write_text(
        f"a long 0.1 {seconds + 0.49}\nb long 0.1 {seconds + 0.03}\nc long 0.1 {seconds + 0.01}\n"
    )
    *cut, rounded = convert("kaldi", data)
    assert [utterance.duration for utterance in cut] == pytest.approx(2 * [seconds - 0.1], abs=1e-5)
    assert rounded.duration == pytest.approx(seconds - 0.09, abs=1e-5)
    assert "2 utterances cut at the end of the recording" in capsys.readouterr().out
    (data / "segments").write_text(f"a long {seconds + 0.1} {seconds + 0.3}\nb long 0 1\nc long 0 1\n")
    assert main(["kaldi", str(data), str(tmp_path / "m.jsonl")]) == 1
    assert mentions(capsys.readouterr().err, "text:1 ... utterance")


def write_channels(path: Path, num_channels: int) -> float:
    """Write a recording with this number of channels; return its length in seconds."""
    samples = speak(TEXTS[0])
    soundfile.write(path, np.stack([samples] + [0.5 * samples] * (num_channels - 1), axis=1), SAMPLE_RATE)
    return len(samples) / SAMPLE_RATE


CHANNELS = "other channels ... channel {} of {}"


@pytest.mark.parametrize("form", ["segments", "reco2file_and_channel"])
def test_kaldi_channels_are_accepted_only_if_the_recording_has_one_channel(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = kaldi(tmp_path)
    (data / "wav.scp").write_text("call one.wav\n")
    (data / "text").write_text("a one\n")
    (data / "segments").write_text("a call 0 0.3 1\n" if form == "segments" else "a call 0 0.3\n")
    if form != "segments":
        (data / form).write_text("call call B\n")
    write_channels(data / "one.wav", 1)
    [utterance] = convert("kaldi", data)
    assert (utterance.offset, utterance.duration) == (0.0, 0.3)
    write_channels(data / "two.wav", 2)
    (data / "wav.scp").write_text("call two.wav\n")
    assert main(["kaldi", str(data), str(tmp_path / "m.jsonl")]) == 1
    assert mentions(capsys.readouterr().err, CHANNELS.format("1" if form == "segments" else "B", 2))
    (data / "segments").write_text("a call 0 0.3 1 x\n")
    assert main(["kaldi", str(data), str(tmp_path / "m.jsonl")]) == 1
    assert "optionally CHANNEL" in capsys.readouterr().err


def test_kaldi_recordings_without_a_channel_are_mixed_down(tmp_path: Path) -> None:
    data = kaldi(tmp_path)
    (data / "wav.scp").write_text("call call.wav\n")
    (data / "text").write_text("call one\n")
    seconds = write_channels(data / "call.wav", 2)
    [utterance] = convert("kaldi", data)
    assert utterance.duration == pytest.approx(seconds)


def call_cut(folder: Path, num_channels: int, **more: Any) -> dict[str, Any]:
    """Return a cut of lhotse that covers a recording with this number of channels; its text belongs to channel 1."""
    name = f"call-{num_channels}.wav"
    seconds = write_channels(folder / name, num_channels)
    source = {"type": "file", "channels": list(range(num_channels)), "source": name}
    recording = {"id": "call", "sources": [source], "sampling_rate": SAMPLE_RATE, "duration": seconds}
    place = {"recording_id": "call", "start": 0.0, "duration": seconds, "channel": 1}
    cut = {"id": "c", "start": 0.0, "duration": seconds, "channel": 1, "type": "MonoCut", "recording": recording}
    return cut | {"supervisions": [place | {"id": "s", "text": "one", "speaker": "a"}]} | more


@pytest.mark.parametrize("kind", ["cut", "supervision", "supervision of a cut with all channels"])
def test_lhotse_texts_of_some_of_the_channels_are_refused(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = []
    for num_channels in (1, 2):
        cut = call_cut(tmp_path, num_channels)
        if kind == "supervision":
            (tmp_path / "recordings.jsonl").write_text(json.dumps(cut["recording"]))
            more = ["--recordings", str(tmp_path / "recordings.jsonl")]
            cut = cut["supervisions"][0]
        elif kind != "cut":
            cut |= {"type": "MultiCut", "channel": list(range(num_channels))}
        (tmp_path / "rows.jsonl").write_text(json.dumps(cut))
        if num_channels == 1:
            assert [utterance.text for utterance in convert("lhotse", tmp_path / "rows.jsonl", *more)] == ["one"]
    assert main(["lhotse", str(tmp_path / "rows.jsonl"), str(tmp_path / "m.jsonl"), *more]) == 1
    assert mentions(capsys.readouterr().err, f"rows.jsonl:1 ... {CHANNELS.format(1, 2)}")


def test_lhotse_texts_of_all_channels_are_converted(tmp_path: Path) -> None:
    cut = call_cut(tmp_path, 2, type="MultiCut", channel=[0, 1])
    cut["supervisions"][0]["channel"] = [0, 1]
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut))
    assert [utterance.text for utterance in convert("lhotse", tmp_path / "cuts.jsonl")] == ["one"]


@pytest.mark.parametrize("key", ["channel_selector", "target_channel", "channel"])
def test_nemo_texts_of_one_channel_are_refused_if_the_file_has_several(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = write_channels(tmp_path / "call.wav", 2)
    row = {"audio_filepath": "call.wav", "duration": seconds, "text": "one"}
    source = tmp_path / "manifest.json"
    source.write_text(json.dumps(row | {key: 0}))
    assert main(["nemo", str(source), str(tmp_path / "m.jsonl")]) == 1
    assert mentions(capsys.readouterr().err, CHANNELS.format(0, 2))
    source.write_text(json.dumps(row | {key: "average"}))
    assert len(convert("nemo", source)) == 1


@pytest.mark.parametrize(
    ("start", "excess"), [(-1.0, 0.0), (-0.01, 0.0), (0.0, 0.01), (5.0, 0.0), (-5.0, 0.0), (-0.001, 0.0), (0.0, 0.001)]
)
def test_lhotse_supervisions_that_are_not_inside_their_cut_are_refused(
    start: float, excess: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = call_cut(tmp_path, 1)
    [supervision] = cut["supervisions"]
    supervision |= {"start": start, "duration": cut["duration"] - start + excess if abs(start) < 2 else 0.1}
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut))
    if abs(start) + excess < 0.002:  # lhotse's tolerance
        assert [utterance.text for utterance in convert("lhotse", tmp_path / "cuts.jsonl")] == ["one"]
        return
    assert main(["lhotse", str(tmp_path / "cuts.jsonl"), str(tmp_path / "m.jsonl")]) == 1
    assert mentions(capsys.readouterr().err, "cuts.jsonl:1 ... supervision")
    supervision["text"] = ""  # without a text, nothing is lost
    (tmp_path / "cuts.jsonl").write_text(json.dumps(cut))
    assert [utterance.text for utterance in convert("lhotse", tmp_path / "cuts.jsonl")] == [""]


def test_manifests_written_by_lhotse_are_converted(tmp_path: Path) -> None:
    lhotse = pytest.importorskip("lhotse", reason="needs lhotse: pip install lhotse")
    recordings = lhotse.RecordingSet.from_recordings(map(lhotse.Recording.from_file, write_audio(tmp_path / "audio")))
    supervisions = lhotse.SupervisionSet.from_segments(
        lhotse.SupervisionSegment(name, name, 0, seconds, text=text, speaker=name[-1])
        for name, seconds, text in zip(NAMES, SECONDS, TEXTS, strict=True)
    )
    cuts = lhotse.CutSet.from_manifests(recordings, supervisions)
    cuts.to_file(tmp_path / "cuts.jsonl.gz")
    recordings.to_file(tmp_path / "recordings.jsonl.gz")
    supervisions.to_file(tmp_path / "supervisions.jsonl.gz")
    whole = convert("lhotse", tmp_path / "cuts.jsonl.gz")
    given = ("--recordings", str(tmp_path / "recordings.jsonl.gz"))
    separate = convert("lhotse", tmp_path / "supervisions.jsonl.gz", *given)
    for utterances in (whole, separate):
        assert [(utterance.text, utterance.speaker) for utterance in utterances] == [
            (text, name[-1]) for name, text in zip(NAMES, TEXTS, strict=True)
        ]
        assert [utterance.duration for utterance in utterances] == pytest.approx(SECONDS)
    cuts.perturb_speed(1.1).to_file(tmp_path / "fast.jsonl")
    assert main(["lhotse", str(tmp_path / "fast.jsonl"), str(tmp_path / "no.jsonl")]) == 1


def edit(path: Path, line: int, change: Callable[[str], str]) -> None:
    """Change a line, counted from 1."""
    lines = path.read_text().splitlines()
    lines[line - 1] = change(lines[line - 1])
    path.write_text("\n".join(lines) + "\n")


def changed(**values: Any) -> Callable[[str], str]:
    return lambda line: json.dumps(json.loads(line) | values)


BROKEN = {  # name: (source format, file, line to change, function that changes the line, expected error)
    "a command": ("kaldi", "wav.scp", 2, lambda _: "utterance-1 sox x.wav - |", r"commands .*'sox x.wav - \|'"),
    "a position in an archive": ("kaldi", "wav.scp", 2, lambda _: "utterance-1 raw.ark:17", r"an archive"),
    "a key alone": ("kaldi", "wav.scp", 3, lambda _: "utterance-2", r"a key and a value"),
    "missing audio": (
        "nemo",
        "manifest.json",
        1,
        changed(audio_filepath="/nowhere/a.wav"),
        r"no such file",
    ),
    "an unknown recording": ("kaldi", "text", 4, lambda _: "utterance-9 abc", r"not in wav.scp"),
    "a column too many": ("common_voice", "validated.tsv", 3, lambda line: f"{line}\tx", r"4 columns"),
    "a path outside": ("common_voice", "validated.tsv", 4, lambda _: "1\t../../../etc/passwd\tabc\t1", r"lie below"),
    "an absolute path": ("audio_folder", "metadata.csv", 2, lambda _: "/etc/passwd,abc,1", r"lie below"),
    "no text": ("audio_folder_jsonl", "metadata.jsonl", 2, changed(text=None), r"text .*; got .* None"),
    "no JSON": ("audio_folder_jsonl", "metadata.jsonl", 2, lambda _: "{", r"one JSON object"),
    "tarred audio": ("nemo", "manifest.json", 5, changed(audio_filepath="audio__OP_0..9_CL_.tar"), r"names tar files"),
    "a duration below zero": ("nemo", "manifest.json", 5, changed(duration=-1), r"duration .*; got -1 "),
    "four columns": ("ljspeech", "metadata.csv", 6, lambda _: "utterance-5|a|b|c", r"4 columns"),
    "an id twice": ("ljspeech", "metadata.csv", 2, lambda _: "utterance-0|abc|abc", r"unique"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_line_is_named_and_no_manifest_is_written_unless_bad_lines_may_be_skipped(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, name, line, change, message = BROKEN[fault]
    kind, make = SOURCES[source]
    path = make(tmp_path)
    file = path / name if path.is_dir() else path
    edit(file, line, change)
    manifest = tmp_path / "converted.jsonl"
    assert main([kind, str(path), str(manifest)]) == 1
    printed = capsys.readouterr().err
    assert re.search(rf"^error: {re.escape(str(file))}:{line}: .*{message}", printed, re.MULTILINE), printed
    assert not manifest.exists()
    assert main([kind, str(path), str(manifest), "--skip-bad"]) == 0
    assert len(read_manifest(manifest)) == len(TEXTS) - 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"type": "MixedCut"}, "plain cut"),
        ({"recording": {"sources": [{"type": "command", "source": "rm -r /"}]}}, "one file"),
        ({"recording": {"sources": [], "transforms": [{"name": "Speed"}]}}, "transforms"),
        ({"recording": "r-1"}, "lhotse's keys"),
        ({"supervisions": [{"text": "a"}]}, "lhotse's keys"),
    ],
)
def test_cuts_that_the_recipe_does_not_support_are_named(
    change: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with gzip.open(lhotse(tmp_path), "rt") as file:
        (tmp_path / "cuts.jsonl").write_text(file.read())
    edit(tmp_path / "cuts.jsonl", 3, changed(**change))
    assert main(["lhotse", str(tmp_path / "cuts.jsonl"), str(tmp_path / "converted.jsonl")]) == 1
    assert re.search(rf"cuts.jsonl:3: .*{message}", capsys.readouterr().err)


@pytest.mark.parametrize("kind", sorted({kind for kind, _ in SOURCES.values()}))
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe\x1f\x8b", b"[1]\n"], ids=["empty", "bytes", "other"])
def test_an_invalid_source_is_reported_without_a_traceback(
    kind: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "source.jsonl"
    path.write_bytes(content)
    assert main([kind, str(path), str(tmp_path / "converted.jsonl")]) == 1
    errors = capsys.readouterr().err.splitlines()  # errors of single lines, and of the whole source
    assert errors
    assert all(line.startswith("error: ") for line in errors)
    assert main([kind, str(tmp_path / "nowhere"), str(tmp_path / "converted.jsonl")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_truncated_gzip_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = lhotse(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    assert main(["lhotse", str(path), str(tmp_path / "converted.jsonl")]) == 1
    assert "cuts.jsonl.gz" in capsys.readouterr().err


def test_the_help_lists_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"python -m recipes.convert {kind} " in printed for kind in (*FORMATS, "auto"))


def test_the_text_column_of_an_audio_folder_may_have_another_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = audio_folder(tmp_path)
    edit(folder / "metadata.csv", 1, lambda _: "file_name,lyrics,speaker_id")
    assert main(["audio_folder", str(folder), str(tmp_path / "converted.jsonl")]) == 1
    assert "Give --text-column" in capsys.readouterr().err
    assert [utterance.text for utterance in convert("audio_folder", folder, "--text-column", "lyrics")] == TEXTS
