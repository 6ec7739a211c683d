"""recipes/digits is tested with a small artificial corpus, a local server, and the real corpus if it is present."""

import functools
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import soundfile

from asr.core.data.manifest import Utterance, read_manifest
from asr.errors import InputError
from recipes.digits.download import download
from recipes.digits.prepare import main
from recipes.digits.recordings import INDICES, SPEAKERS, WORDS
from tests.refusals import mentions, refused

REAL_CORPUS = Path(__file__).parents[2] / "shared" / "data" / "free-spoken-digit-dataset"


def wav(num_samples: int = 800) -> bytes:
    encoded = io.BytesIO()
    soundfile.write(encoded, np.zeros(num_samples), 8_000, format="WAV")
    return encoded.getvalue()


def make_corpus(folder: Path, speakers: tuple[str, ...] = ("george", "lucas", "theo"), num_indices: int = 12) -> Path:
    folder.mkdir(parents=True)
    for digit, speaker, index in product(range(10), speakers, range(num_indices)):
        (folder / f"{digit}_{speaker}_{index}.wav").write_bytes(wav())
    return folder


def prepare(corpus_dir: Path, output_dir: Path) -> int:
    return main(["--corpus-dir", str(corpus_dir), "--output-dir", str(output_dir)])


def index(utterance: Utterance) -> int:
    return int(utterance.id.split("_")[2])


def read_splits(folder: Path) -> dict[str, list[Utterance]]:
    return {split: read_manifest(folder / f"{split}.jsonl") for split in ("train", "valid", "test")}


def test_the_official_split_is_by_index(tmp_path: Path) -> None:
    assert prepare(make_corpus(tmp_path / "corpus"), tmp_path / "out") == 0
    splits = read_splits(tmp_path / "out")
    assert {index(utterance) for utterance in splits["test"]} == {0, 1, 2, 3, 4}
    assert {index(utterance) for utterance in splits["valid"]} == {5, 6, 7, 8, 9}
    assert {index(utterance) for utterance in splits["train"]} == {10, 11}
    assert sum(map(len, splits.values())) == 10 * 3 * 12


def test_a_held_out_speaker_is_only_in_test(tmp_path: Path) -> None:
    prepare(make_corpus(tmp_path / "corpus"), tmp_path / "out")
    official_test = {utterance.id for utterance in read_manifest(tmp_path / "out" / "test.jsonl")}
    for speaker in ("george", "lucas", "theo"):
        splits = read_splits(tmp_path / "out" / f"without-{speaker}")
        assert {utterance.speaker for utterance in splits["test"]} == {speaker}
        assert len(splits["test"]) == 10 * 12
        for split in ("train", "valid"):
            assert {utterance.speaker for utterance in splits[split]} == {"george", "lucas", "theo"} - {speaker}
            assert not {utterance.id for utterance in splits[split]} & official_test


def test_the_text_is_the_word_for_the_digit_in_the_file_name(tmp_path: Path) -> None:
    prepare(make_corpus(tmp_path / "corpus"), tmp_path / "out")
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    for utterance in read_manifest(tmp_path / "out" / "train.jsonl"):
        assert utterance.text == words[int(Path(utterance.audio_filepath).name[0])]
        assert utterance.duration == 0.1  # 800 samples at 8 kHz


def test_recordings_may_be_in_the_folder_or_in_its_subfolder_recordings(tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus" / "recordings")
    for name in ("corpus", "corpus/recordings"):
        assert prepare(tmp_path / name, tmp_path / "out" / name) == 0
    direct, below = (read_manifest(tmp_path / "out" / name / "train.jsonl") for name in ("corpus", "corpus/recordings"))
    assert [utterance.id for utterance in direct] == [utterance.id for utterance in below]


def test_missing_misnamed_and_unknown_files_are_counted_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_corpus(tmp_path / "corpus", speakers=("george", "anna"), num_indices=50)
    (corpus / "seven_george_1.wav").write_bytes(wav())
    (corpus / "3_george_07.wav").write_bytes(wav())
    (corpus / "4_george_33.wav").unlink()
    for recording in corpus.glob("8_anna_*.wav"):
        recording.unlink()
    assert prepare(corpus, tmp_path / "out") == 0
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 4
    assert "2 (3_george_07.wav, seven_george_1.wav) are not named" in warnings[0]
    assert "1 (anna) is not among the speakers" in warnings[1]
    assert "2501 (4_george_33.wav, 0_jackson_0.wav" in warnings[2]  # 500 for each of 5 missing speakers, plus one
    assert warnings[3] == "warning: anna says no eight."


@pytest.mark.parametrize("content", [b"", b"no audio", wav(0)], ids=["no bytes", "not a WAV file", "no samples"])
def test_a_damaged_recording_is_an_error_that_names_it(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_corpus(tmp_path / "corpus")
    (corpus / "6_theo_3.wav").write_bytes(content)
    assert prepare(corpus, tmp_path / "out") == 1
    assert "1 (6_theo_3.wav) is not" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_single_speaker_gets_the_official_split_and_the_reason_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(make_corpus(tmp_path / "corpus", speakers=("theo",)), tmp_path / "out") == 0
    assert mentions(capsys.readouterr().err, "leave a speaker")
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == [
        "test.jsonl",
        "train.jsonl",
        "valid.jsonl",
    ]


def test_an_unusable_folder_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare(tmp_path / "nowhere", tmp_path / "out") == 1
    assert "--corpus-dir must hold" in capsys.readouterr().err
    assert prepare(make_corpus(tmp_path / "few", num_indices=10), tmp_path / "out") == 1
    assert mentions(capsys.readouterr().err, "train.jsonl ... least one recording")
    (tmp_path / "file").touch()
    assert prepare(make_corpus(tmp_path / "corpus"), tmp_path / "file") == 1
    (error,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert str(tmp_path / "file") in error


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that a local web server serves, and its URL."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def write_archive(path: Path, leave_out: str = "", link: str = "") -> None:
    content, top = wav(), "free-spoken-digit-dataset-1.0.10"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for speaker, digit, number in product(SPEAKERS, range(10), INDICES):
            name = f"{digit}_{speaker}_{number}.wav"
            member = tarfile.TarInfo(f"{top}/recordings/{name}")
            member.size = len(content)
            if name == link:
                member.type, member.linkname, member.size = tarfile.SYMTYPE, "/etc/passwd", 0
            if name != leave_out:
                archive.addfile(member, None if name == link else io.BytesIO(content))
        outside = tarfile.TarInfo("../outside.py")
        outside.size = 4
        archive.addfile(outside, io.BytesIO(b"evil"))


def test_the_download_unpacks_only_the_recordings(served: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = served
    write_archive(folder / "v1.tar.gz")
    corpus_dir = tmp_path / "new" / "corpus"
    download(corpus_dir, f"{url}/v1.tar.gz")
    assert [path.name for path in corpus_dir.iterdir()] == ["recordings"]
    assert len(list((corpus_dir / "recordings").iterdir())) == 3_000
    assert not list(tmp_path.rglob("outside.py"))
    download(corpus_dir, f"{url}/is-not-asked-for-again")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere.tar.gz", "404"),
        ("page.html", "be a complete ... tar.gz"),
        ("broken-off.tar.gz", "be a complete ... tar.gz"),
        ("part.tar.gz", "1 are misnamed ... 3_lucas_7.wav"),
        ("link.tar.gz", "is a link"),
    ],
)
def test_a_download_that_is_not_the_intact_archive_leaves_no_files(
    name: str, complaint: str, served: tuple[Path, str], tmp_path: Path
) -> None:
    folder, url = served
    if name == "page.html":
        (folder / name).write_text("<html>Sign in to the wireless network</html>")
    elif name == "broken-off.tar.gz":
        write_archive(folder / "whole.tar.gz")
        whole = (folder / "whole.tar.gz").read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
    elif name != "nowhere.tar.gz":
        leave_out, link = ("3_lucas_7.wav", "") if name == "part.tar.gz" else ("", "3_lucas_7.wav")
        write_archive(folder / name, leave_out, link)
    with refused(InputError, complaint):
        download(tmp_path / "corpus", f"{url}/{name}")
    assert not list((tmp_path / "corpus").iterdir())


def test_a_server_that_does_not_answer_is_reported_in_one_line(tmp_path: Path) -> None:
    with refused(InputError, "with the archive"):
        download(tmp_path / "corpus", "http://127.0.0.1:9/v1.tar.gz")


@pytest.mark.skipif(not REAL_CORPUS.is_dir(), reason=f"the real recordings are missing: {REAL_CORPUS}")
def test_the_real_corpus_is_complete_and_has_the_published_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prepare(REAL_CORPUS, tmp_path) == 0
    assert capsys.readouterr().err == ""  # nothing is missing, misnamed or unreadable
    sizes = {split: len(several) for split, several in read_splits(tmp_path).items()}
    assert sizes == {"train": 2_400, "valid": 300, "test": 300}
    for speaker in SPEAKERS:
        left_out = read_splits(tmp_path / f"without-{speaker}")
        assert {split: len(several) for split, several in left_out.items()} == {
            "train": 2_000,
            "valid": 250,
            "test": 500,
        }
        assert {utterance.text for utterance in left_out["test"]} == set(WORDS)
