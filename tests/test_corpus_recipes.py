"""Recipes of mini LibriSpeech, LJSpeech and Common Voice make manifests from generated archives on a local server."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from asr.core.data.manifest import read_manifest
from asr.plan import plan
from recipes.common_voice.prepare import main as prepare_common_voice
from recipes.librispeech import download
from recipes.librispeech.corpus import SUBSETS
from recipes.librispeech.download import MIRRORS
from recipes.ljspeech import prepare as ljspeech
from tests.conftest import TINY, settings_with
from tests.refusals import mentions
from tests.test_librispeech_download import Mirror, member
from tests.tones import SAMPLE_RATE, sentences, speak

TEXTS = sentences(6, seed=4, words=(2, 3))


def archive(files: dict[str, bytes], compression: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=f"w:{compression}") as tar:
        for name, content in files.items():
            tar.addfile(*member(name, content))
    return out.getvalue()


def sound(text: str, kind: str) -> bytes:
    out = io.BytesIO()
    soundfile.write(out, speak(text), SAMPLE_RATE, format=kind)
    return out.getvalue()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PAUSES_SECONDS", (0.0,))
    mirror = Mirror(b"")
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


# ---------------------------------------------------------------- mini LibriSpeech


def test_the_parts_of_mini_librispeech_are_fetched_from_their_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    monkeypatch.setattr(download, "fetch_and_unpack", lambda archive, *_, **__: fetched.append(archive.url))
    download.download(["train-clean-5", "dev-clean-2", "dev-clean"], tmp_path, "eu", keep_archives=False)
    eu = MIRRORS["eu"]
    parts = [f"{eu}/31/train-clean-5.tar.gz", f"{eu}/31/dev-clean-2.tar.gz", f"{eu}/12/dev-clean.tar.gz"]
    assert fetched == parts
    assert {name for name, subset in SUBSETS.items() if subset.resource == 31} == {"train-clean-5", "dev-clean-2"}


# ---------------------------------------------------------------- LJSpeech

CHAPTERS = ["LJ001-0001", "LJ001-0002", "LJ048-0001", "LJ049-0001", "LJ049-0002", "LJ050-0001"]


def lj_archive(ids: list[str]) -> bytes:
    pairs = list(zip(ids, TEXTS, strict=False))
    table = "".join(f"{name}|As written: {text}|{text}\n" for name, text in pairs)
    files = {"LJSpeech-1.1/README": b"read me", "LJSpeech-1.1/metadata.csv": table.encode()}
    return archive(files | {f"LJSpeech-1.1/wavs/{name}.wav": sound(text, "WAV") for name, text in pairs}, "bz2")


def prepare_ljspeech(folder: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """Run the recipe as if the mirror's archive were the published archive."""
    monkeypatch.setattr(ljspeech, "ARCHIVE_BYTES", len(mirror.content))
    monkeypatch.setattr(ljspeech, "MD5", hashlib.md5(mirror.content).hexdigest())
    monkeypatch.setattr(ljspeech, "NUM_UTTERANCES", len(CHAPTERS))
    folders = ["--corpus-dir", str(folder / "lj" / "LJSpeech-1.1"), "--output-dir", str(folder / "data")]
    return ljspeech.main([*folders, "--download", "--mirror", mirror.url, *more])


def test_ljspeech_is_fetched_verified_unpacked_and_split_by_chapter(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.content = lj_archive(CHAPTERS)
    assert prepare_ljspeech(tmp_path, mirror, monkeypatch) == 0
    assert [path.name for path in (tmp_path / "lj").iterdir()] == ["LJSpeech-1.1"], "the archive is removed"
    splits = {name: read_manifest(tmp_path / "data" / f"{name}.jsonl") for name in ("train", "valid", "test")}
    assert {name: [utterance.id for utterance in utterances] for name, utterances in splits.items()} == {
        "train": CHAPTERS[:3],
        "valid": CHAPTERS[3:5],
        "test": CHAPTERS[5:],
    }
    assert [utterance.text for utterances in splits.values() for utterance in utterances] == TEXTS
    printed = capsys.readouterr().out
    assert "LJSpeech: complete: 6 utterances; the published corpus has 6." in printed
    plan(settings_with("corpus=ljspeech", *TINY, "schedule.warmup_steps=1", f"corpus.dir={tmp_path / 'data'}"))
    assert prepare_ljspeech(tmp_path, mirror, monkeypatch) == 0
    assert "exists already; not fetched." in capsys.readouterr().err
    assert mirror.starts == [0]


def test_an_archive_that_differs_from_the_published_one_is_not_unpacked(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.content = lj_archive(CHAPTERS)
    folders = ["--corpus-dir", str(tmp_path / "lj" / "LJSpeech-1.1"), "--output-dir", str(tmp_path / "data")]
    monkeypatch.setattr(ljspeech, "ARCHIVE_BYTES", len(mirror.content))
    assert ljspeech.main([*folders, "--download", "--mirror", mirror.url]) == 1
    assert mentions(capsys.readouterr().err, "MD5 c4763be9595ddfa79c2fc6eaeb3b6c8e")
    assert not list((tmp_path / "lj").iterdir())


def test_an_ljspeech_archive_without_the_test_chapters_is_reported(
    tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror.content = lj_archive(CHAPTERS[:3])
    assert prepare_ljspeech(tmp_path, mirror, monkeypatch) == 1
    assert mentions(capsys.readouterr().err, "nothing was found")
    assert not (tmp_path / "data").exists()


# ---------------------------------------------------------------- Common Voice

COLUMNS = "client_id\tpath\tsentence\tup_votes\n"


def cv_archive(folder: Path, *, broken: bool = False) -> Path:
    files = {}
    for number, split in enumerate(("train", "dev", "test")):
        texts = TEXTS[2 * number : 2 * number + 2]
        rows = [f"speaker-{split}\t{split}-{index}.mp3\t{text.title()}.\t2\n" for index, text in enumerate(texts)]
        files[f"cv-corpus-9.9/en/{split}.tsv"] = (COLUMNS + "".join(rows)).encode()
        for index, text in enumerate(texts):
            files[f"cv-corpus-9.9/en/clips/{split}-{index}.mp3"] = sound(text, "MP3")
    if broken:
        files["cv-corpus-9.9/en/clips/dev-1.mp3"] = b"no audio"
    path = folder / "cv-corpus-9.9-en.tar.gz"
    path.write_bytes(archive(files, "gz"))
    return path


def cv(folder: Path, *more: str) -> int:
    return prepare_common_voice(["--corpus-dir", str(folder / "en"), "--output-dir", str(folder / "data"), *more])


def test_common_voice_is_verified_and_unpacked_with_its_own_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cv_archive(tmp_path)
    assert cv(tmp_path, "--archive", str(path), "--sha256", hashlib.sha256(path.read_bytes()).hexdigest()) == 0
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cv-corpus-9.9-en.tar.gz", "data", "en"]
    splits = [read_manifest(tmp_path / "data" / f"{name}.jsonl") for name in ("train", "dev", "test")]
    assert [utterance.text for utterances in splits for utterance in utterances] == [
        f"{text.title()}." for text in TEXTS
    ]
    assert [{utterance.speaker for utterance in utterances} for utterances in splits] == [
        {"speaker-train"},
        {"speaker-dev"},
        {"speaker-test"},
    ]
    out, err = capsys.readouterr()
    assert "train.jsonl: 2 utterances, 0.00 h, 1 known speaker" in out
    assert "verified and unpacked" in err
    plan(settings_with("corpus=common_voice", *TINY, "schedule.warmup_steps=1", f"corpus.dir={tmp_path / 'data'}"))


def test_a_common_voice_archive_with_another_checksum_is_not_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cv_archive(tmp_path)
    assert cv(tmp_path, "--archive", str(path), "--sha256", "0" * 64) == 1
    assert mentions(capsys.readouterr().err, f"SHA-256 {'0' * 64}")
    assert not (tmp_path / "en").exists()


def test_an_archive_that_is_not_common_voice_is_refused_and_leaves_no_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.tar.gz"
    path.write_bytes(archive({"other/README": b"read me"}, "gz"))
    assert cv(tmp_path, "--archive", str(path)) == 1
    assert mentions(capsys.readouterr().err, "*/*/train.tsv ... 0")
    assert [entry.name for entry in tmp_path.iterdir()] == ["other.tar.gz"]


def test_a_clip_that_is_not_audio_is_named_and_dropped_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cv_archive(tmp_path, broken=True)
    assert cv(tmp_path, "--archive", str(path)) == 1
    assert "dev.tsv:3" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert cv(tmp_path, "--skip-bad") == 0
    assert len(read_manifest(tmp_path / "data" / "dev.jsonl")) == 1
    out, err = capsys.readouterr()
    assert mentions(out, "dev.tsv ... 1 left out")
    assert err.count("dev.tsv:3") == 1, "the error must not be repeated with the table"
