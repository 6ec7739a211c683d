"""A Shar written by lhotse is indexed in place, and gives the audio of the original files."""

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from asr.data.dataset import load_utterance
from asr.data.index_cache import IndexCache
from asr.data.manifest import Utterance, read_manifest
from asr.errors import InputError, StoreError
from tests.storing import index
from tests.tones import SAMPLE_RATE


@pytest.fixture(scope="module")
def files(tones: Path) -> list[Utterance]:
    return read_manifest(tones / "train.jsonl")


def cut(name: str, duration: float, *texts: str, **more: Any) -> dict[str, Any]:
    """Return a cut of a Shar as lhotse writes it, with a supervision for each of `texts`."""
    recording = {"id": "r", "sampling_rate": SAMPLE_RATE, "duration": duration, "sources": []}
    length = duration / max(1, len(texts))
    times = [{"start": place * length, "duration": length, "channel": 0} for place in range(len(texts))]
    spoken = [
        times[place] | {"id": f"{name}-{place}", "text": text, "speaker": "s"} for place, text in enumerate(texts)
    ]
    return {"id": name, "start": 0, "duration": duration, "supervisions": spoken, "recording": recording} | more


def write_shar(folder: Path, audio: Mapping[str, bytes], lines: list[Any]) -> list[Path | str]:
    """Write a shard and its cuts; return the arguments of the command that indexes them."""
    folder.mkdir()
    with tarfile.open(folder / "recording.000000.tar", "w") as archive:
        for name, content in audio.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            archive.addfile(header, io.BytesIO(content))
    with gzip.open(folder / "cuts.000000.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    cuts = folder / "cuts.000000.jsonl.gz"
    return [folder / "recording.000000.tar", "--lhotse-cuts", cuts, "-o", folder / "index.arrow"]


def test_a_shar_written_by_lhotse_is_read(files: list[Utterance], tmp_path: Path) -> None:
    lhotse = pytest.importorskip("lhotse", reason="lhotse is not installed: pip install -e '.[test-all]'")
    cuts = []
    for file in files:
        recording = lhotse.Recording.from_file(file.audio_filepath, recording_id=f"{file.id}.wav")  # id with a dot
        words = {"text": file.text, "speaker": "anna"}
        spoken = lhotse.SupervisionSegment(file.id, recording.id, 0.0, recording.duration, **words)
        cuts.append(lhotse.MonoCut(f"{file.id}.a", 0, recording.duration, 0, [spoken], recording=recording))
    part = cuts[0].truncate(offset=0.1, duration=0.5)  # lhotse stores only this part
    middle = part.drop_supervisions().with_id("middle")
    lhotse.CutSet.from_cuts([*cuts, middle]).to_shar(tmp_path, fields={"recording": "wav"}, shard_size=10)
    tars, lines = tmp_path / "recording.*.tar", tmp_path / "cuts.*.jsonl.gz"
    index(tars, "--lhotse-cuts", lines, "-o", tmp_path / "index.arrow")
    utterances = IndexCache().utterances(tmp_path / "index.arrow")
    assert list(utterances.ids) == [*(f"{file.id}.a" for file in files), "middle"]
    assert list(utterances.texts)[:-1] == [file.text for file in files]
    assert {utterance.speaker for utterance in list(utterances)[:-1]} == {"anna"}
    for utterance, file in zip(utterances, files, strict=False):
        assert torch.equal(load_utterance(utterance, SAMPLE_RATE), load_utterance(file, SAMPLE_RATE))
    whole = load_utterance(files[0], SAMPLE_RATE)
    part = whole[SAMPLE_RATE // 10 :][: SAMPLE_RATE // 2]
    assert torch.equal(load_utterance(utterances[-1], SAMPLE_RATE), part)


def test_texts_of_supervisions_are_joined_and_all_speakers_are_listed(files: list[Utterance], tmp_path: Path) -> None:
    audio, seconds = Path(files[0].audio_filepath).read_bytes(), files[0].duration
    two = cut("two", seconds, "good", "", "morning")
    others = [cut("mixed", seconds, "a", "b"), cut("none", seconds)]
    others[0]["supervisions"][1]["speaker"] = "t"
    members = {f"{name}.{kind}": audio for name in ("mixed", "none", "two") for kind in ("wav",)}
    index(*write_shar(tmp_path / "shar", members, [two, *others]))
    utterances = IndexCache().utterances(tmp_path / "shar" / "index.arrow")
    assert [(each.id, each.text, each.speaker) for each in utterances] == [
        ("two", "good morning", "s"),
        ("mixed", "a b", None),
        ("none", "", None),
    ]


def test_an_invalid_shar_is_reported_in_one_line(files: list[Utterance], tmp_path: Path) -> None:
    audio, seconds = Path(files[0].audio_filepath).read_bytes(), files[0].duration
    wav = {"a.wav": audio}
    outside = cut("a", seconds, "x")
    outside["supervisions"][0] |= {"start": -1.0}
    cases: dict[str, tuple[Mapping[str, bytes], list[Any], str]] = {
        "other": (
            wav,
            [cut("b", seconds, "x")],
            r":1: recording\.000000\.tar must contain the audio of 'b'; it does not",
        ),
        "nodata": ({"a.nodata": b"", "a.nometa": b""}, [cut("a", seconds, "x")], "must contain the audio of 'a'"),
        "part": (
            wav,
            [cut("a", seconds / 2, "x", recording={"duration": seconds})],
            "a cut must cover its whole recording",
        ),
        "bare": (wav, [{"id": "a"}], "a cut must have id, duration, recording and supervisions; KeyError"),
        "odd": (wav, [cut("a", seconds, "x", recording=3)], "a cut must have id, .*TypeError"),
        "texts": (wav, [cut("a", seconds, "x", supervisions=[3])], "a cut must have id, .*TypeError"),
        "list": (wav, [[1]], "each line must be one JSON object"),
        "outside": (wav, [outside], r":1: a supervision with a text must lie within its cut; it is from -1 to "),
        "one of two": (wav, [cut("a", seconds, "x", channel=[0, 1])], "must belong to all 2 channels of the cut"),
        "twice": (wav, [cut("a", seconds, "x")] * 2, "ids must be unique; 'a'"),
    }
    for name, (members, lines, message) in cases.items():
        arguments = write_shar(tmp_path / name, members, lines)
        with pytest.raises(InputError, match=message) as caught:
            index(*arguments)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / name / "index.arrow").exists()
    arguments = write_shar(tmp_path / "damaged", wav, [cut("a", seconds, "x")])
    cuts = tmp_path / "damaged" / "cuts.000000.jsonl.gz"
    for content in (b"no gzip", cuts.read_bytes()[:-9], cuts.read_bytes()[:40] + bytes(20)):
        cuts.write_bytes(content)
        with pytest.raises(InputError, match=r"cuts\.000000\.jsonl\.gz: must be a file of lhotse cuts, \.jsonl\.gz"):
            index(*arguments)
    with pytest.raises(InputError, match="one file of cuts for each of the 1 tar files, in the same order; got 2"):
        index(*arguments[:3], cuts, *arguments[3:])
    cuts.unlink()
    with pytest.raises(StoreError, match=r"cuts\.000000\.jsonl\.gz: must be a file that can be read"):
        index(*arguments)
