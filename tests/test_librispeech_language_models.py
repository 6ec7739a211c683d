"""Downloads of LibriSpeech's n-gram models from a server with faults; unpacking in lower case."""

import errno
import gzip
import hashlib
import io
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asr.base.text.normalize import basic
from recipes.librispeech import download, language_models
from recipes.librispeech.download import Archive, check_disk_space, mirror_url
from recipes.librispeech.language_models import LANGUAGE_MODELS, LANGUAGE_MODELS_RESOURCE, lower_case, main
from tests.refusals import mentions
from tests.test_librispeech_download import CHECKOUT, Mirror, drop_before, hang_up, refuse

MODEL = "3-gram.pruned.1e-7"

# ---------------------------------------------------------------- a tiny language model, and a mirror of it


def make_arpa(num_words: int = 10_000) -> bytes:
    """Return a unigram model of artificial words; about 150 kB when compressed."""
    rng = random.Random(0)
    words = sorted({"".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ'", k=8)) for _ in range(num_words)})
    lines = [f"{-rng.uniform(1, 7):.7g}\t{word}\t{-rng.random():.7g}" for word in words]
    special = ["-1.4\t</s>", "-99\t<s>\t-1.2", "-3.1\t<UNK>\t-5.1e-05", "-2.5\tTHE\t-0.3", "-4\t'TIS\t-0.1"]
    bigrams = ["-0.4\t<s> THE", "-0.1\tTHE </s>", "-2.0\t<UNK> DON'T"]
    head = ["", "\\data\\", f"ngram 1={len(words) + 5}", "ngram 2=3", "", "\\1-grams:"]
    return "\n".join([*head, *special, *lines, "", "\\2-grams:", *bigrams, "", "\\end\\", ""]).encode()


ARPA = make_arpa()
ARCHIVE = gzip.compress(ARPA)


def facts(archive: bytes) -> tuple[int, str]:
    return len(archive), hashlib.md5(archive).hexdigest()


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    """Serve the tiny model as if it were the published one, without pauses between attempts."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setitem(LANGUAGE_MODELS, MODEL, facts(ARCHIVE))
    monkeypatch.setattr(download, "PAUSES_SECONDS", (0.0, 0.0, 0.0))
    mirror = Mirror(ARCHIVE)
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


def publish(mirror: Mirror, monkeypatch: pytest.MonkeyPatch, archive: bytes) -> None:
    """Serve this archive, and make its size and checksum the published ones."""
    mirror.content = archive
    monkeypatch.setitem(LANGUAGE_MODELS, MODEL, facts(archive))


def arguments(folder: Path, mirror: Mirror, *more: str) -> list[str]:
    return ["--output-dir", str(folder / "lm"), "--models", MODEL, "--mirror", mirror.url, *more]


def fetch(folder: Path, mirror: Mirror, *more: str) -> int:
    return main(arguments(folder, mirror, *more))


def folder_contents(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "lm").iterdir())


def arpa_of(folder: Path) -> Path:
    path = folder / "lm" / f"{MODEL}.arpa"
    path.parent.mkdir(exist_ok=True)
    return path


def part_of(folder: Path) -> Path:
    return arpa_of(folder).with_name(f"{MODEL}.arpa.gz.part")


def test_the_four_published_models_have_the_known_sizes():
    megabytes = {name: round(size / 1e6) for name, (size, _) in LANGUAGE_MODELS.items()}
    assert megabytes == {"3-gram": 760, "3-gram.pruned.1e-7": 34, "3-gram.pruned.3e-7": 14, "4-gram": 1355}
    assert all(re.fullmatch("[0-9a-f]{32}", md5) for _, md5 in LANGUAGE_MODELS.values())
    assert mirror_url("eu", LANGUAGE_MODELS_RESOURCE) == "https://openslr.elda.org/resources/11"


# ---------------------------------------------------------------- fetching


def test_a_language_model_is_fetched_verified_and_unpacked_in_lower_case(tmp_path, mirror, capsys):
    assert fetch(tmp_path, mirror) == 0
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa"]
    assert arpa_of(tmp_path).read_bytes() == ARPA.lower()
    captured = capsys.readouterr()
    ready = "is ready; its words are in lower case, like the output of asr.base.text.normalize.basic."
    assert captured.out == f"{arpa_of(tmp_path)} {ready}\n"
    assert mentions(captured.err, f"{MODEL}.arpa ... --keep-archives")


def test_the_archive_is_kept_on_request_and_used_again(tmp_path, mirror, capsys):
    assert fetch(tmp_path, mirror, "--keep-archives") == 0
    assert (tmp_path / "lm" / f"{MODEL}.arpa.gz").read_bytes() == ARCHIVE
    arpa_of(tmp_path).unlink()
    assert fetch(tmp_path, mirror) == 0
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa", f"{MODEL}.arpa.gz"]
    assert mirror.starts == [0]
    assert mentions(capsys.readouterr().err, "it was verified")


def test_a_complete_language_model_is_not_changed(tmp_path, mirror, capsys):
    assert fetch(tmp_path, mirror) == 0
    part_of(tmp_path).write_bytes(b"left by a run that was killed at the end")
    before = arpa_of(tmp_path).stat()
    assert fetch(tmp_path, mirror) == 0
    after = arpa_of(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)  # reading it changes st_atime
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa"]
    assert mirror.starts == [0]
    assert mentions(capsys.readouterr().err, f"{MODEL}.arpa ... not fetched")


@pytest.mark.parametrize(
    "content", [b"", ARPA, ARPA.lower()[:-10], ARPA.lower()[10:]], ids=["empty", "capitals", "no end", "no beginning"]
)
def test_another_file_in_the_place_of_the_model_is_an_error_and_is_not_changed(tmp_path, mirror, capsys, content):
    arpa_of(tmp_path).write_bytes(content)
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "lower case")
    assert arpa_of(tmp_path).read_bytes() == content
    assert mirror.starts == []


def test_an_interrupted_transfer_continues_where_it_stopped(tmp_path, mirror):
    mirror.answers = [drop_before(30_000), hang_up, drop_before(60_000)]
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0, 30_000, 30_000, 60_000]
    assert arpa_of(tmp_path).read_bytes() == ARPA.lower()


def test_a_later_run_continues_a_partial_download(tmp_path, mirror, capsys):
    mirror.answers = [drop_before(30_000)]
    mirror.otherwise = hang_up
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "choose ... --mirror")
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa.gz.part"]
    mirror.answers, mirror.starts = [drop_before(len(ARCHIVE))], []
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [30_000]


def test_a_mirror_without_the_model_is_asked_only_once(tmp_path, mirror, capsys):
    mirror.otherwise = refuse(404)
    assert fetch(tmp_path, mirror) == 1
    assert mirror.starts == [0]
    assert mentions(capsys.readouterr().err, f"{mirror.url}{MODEL}.arpa.gz ... server answered")


def test_a_web_page_instead_of_the_model_is_refused_because_of_its_size(tmp_path, mirror, capsys):
    mirror.content = b"<html>Please log in.</html>"
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, f"{len(ARCHIVE)} ... 27 ... --mirror")


def test_an_archive_with_another_checksum_is_deleted_and_not_unpacked(tmp_path, mirror, capsys):
    mirror.content = ARCHIVE[:-1] + bytes([ARCHIVE[-1] ^ 1])
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, f"MD5 {facts(ARCHIVE)[1]}")
    assert folder_contents(tmp_path) == []


def test_insufficient_disk_space_is_reported_before_the_download(tmp_path, mirror, monkeypatch, capsys):
    monkeypatch.setitem(LANGUAGE_MODELS, "3-gram", (10**15, "0" * 32))
    monkeypatch.setitem(LANGUAGE_MODELS, "4-gram", (2 * 10**15, "0" * 32))
    assert fetch(tmp_path, mirror, "--models", "3-gram", "4-gram") == 1
    assert mentions(capsys.readouterr().err, "14000000.0 ... 3-gram.arpa.gz ... --output-dir")
    assert mirror.starts == []


def test_files_of_a_killed_run_are_removed_before_disk_space_is_measured(tmp_path, mirror, monkeypatch, capsys):
    arpa_of(tmp_path).with_name(f".{MODEL}.arpa.unfinished").write_bytes(ARPA[:1000])
    monkeypatch.setitem(LANGUAGE_MODELS, MODEL, (10**15, "0" * 32))
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, "GB ... free to fetch")
    assert folder_contents(tmp_path) == []


def test_existing_files_do_not_count_towards_the_required_disk_space(tmp_path, monkeypatch):
    archive = Archive("", tmp_path / "a.gz", size=100, md5="")
    archive.part.write_bytes(b"x" * 70)
    usage = download.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda folder: usage._replace(free=430))
    check_disk_space([archive], unpacked_per_byte=4.0, keep_archives=False, advice="")
    archive.part.write_bytes(b"x" * 69)
    with pytest.raises(ValueError, match=r"to fetch and unpack a\.gz; it has"):
        check_disk_space([archive], unpacked_per_byte=4.0, keep_archives=False, advice="")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--models", "5-gram"], "--models ... 3-gram.pruned.1e-7"),
        (["--models", "3-gram", "3-gram.arpa"], "3-gram.arpa"),
        (["--models", "3-gram", "--mirror", "moon"], "--mirror ... URL"),
        (["--models", "3-gram", "--mirror", "file:///etc"], "or an http(s) URL; got 'file:///etc'"),
    ],
)
def test_an_unknown_model_or_mirror_is_reported_in_one_line(tmp_path, capsys, given, message):
    assert main(["--output-dir", str(tmp_path / "lm"), *given]) == 1
    err = capsys.readouterr().err
    assert mentions(err, message)
    assert err.count("\n") == 1
    assert not (tmp_path / "lm").exists()


def test_an_output_dir_that_cannot_be_created_is_reported_in_one_line(tmp_path, mirror, capsys):
    (tmp_path / "lm").write_text("a file")
    assert fetch(tmp_path, mirror) == 1
    error = capsys.readouterr().err
    assert mentions(error, "--output-dir ... room left")
    assert error.endswith("lm: File exists.\n")


# ---------------------------------------------------------------- lower case


def in_lower_case(text: str) -> str:
    return b"".join(lower_case(io.BytesIO(text.encode()))).decode()


def arpa(*lines: str) -> str:
    return "\n".join(["\\data\\", "ngram 1=1", "", "\\1-grams:", *lines, "", "\\end\\", ""])


def test_words_are_converted_to_lower_case_and_nothing_else_changes():
    capitals = arpa("-99\t<s>\t-1.5e-05", "-1\t</s>", "-2\t<UNK>\t-0.3", "-3\tDON'T\t-4", "-0.5\tDON'T THE <UNK>")
    small = arpa("-99\t<s>\t-1.5e-05", "-1\t</s>", "-2\t<unk>\t-0.3", "-3\tdon't\t-4", "-0.5\tdon't the <unk>")
    assert in_lower_case(capitals) == small
    assert basic("DON'T THE") == "don't the"


@pytest.mark.parametrize("line", ["-1\tThe\t-2", "-1\tTHE cAT", "-1\tthe", "-1\tDON't", "-1\t'tis", "-1\tCAFÉ\t-2"])
def test_a_word_not_in_ascii_capitals_is_refused_because_two_words_might_become_one(line):
    with pytest.raises(ValueError, match="must be in ASCII capitals") as raised:
        in_lower_case(arpa("-1\tTHE\t-2", line))
    assert repr(line.encode()) in str(raised.value)


def test_a_model_that_spells_the_unknown_word_in_both_cases_is_refused():
    with pytest.raises(ValueError, match="must spell the unknown word either <unk> or <UNK>; it has both spellings"):
        in_lower_case(arpa("-1\t<UNK>", "-1\t<unk>"))


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 64])
def test_blocks_of_any_size_end_at_line_ends_and_contain_the_whole_text(monkeypatch, block_bytes):
    monkeypatch.setattr(language_models, "BLOCK_BYTES", block_bytes)
    text = arpa("-99\t<s>\t-1.5e-05", "-2\t<UNK>\t-0.3", "-3\tDON'T\t-4")
    blocks = list(language_models._whole_lines(io.BytesIO(text.encode())))
    assert "".join(block.decode() for block in blocks) == text
    assert all(block.endswith(b"\n") for block in blocks)


# ---------------------------------------------------------------- unpacking

NOT_CAPITALS = ARPA.replace(b"\tTHE\t", b"\tThe\t")


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (ARCHIVE[:90_000], "Compressed file"),
        (ARCHIVE[:-8] + b"\0\0\0\0" + ARCHIVE[-4:], "CRC ... check failed"),
        (ARCHIVE[:-4] + b"\0\0\0\0", "Incorrect length"),
        (ARCHIVE[:60_000] + b"\xff" * 64 + ARCHIVE[60_064:], "undamaged gzip"),
        (b"no archive at all" * 1000, "gzipped file"),
        (gzip.compress(b""), "be a complete ... ARPA"),
        (gzip.compress(b"<html></html>"), "ARPA ... begins"),
        (gzip.compress(ARPA[:90_000]), "be a complete ... ARPA"),
        (
            gzip.compress(NOT_CAPITALS),
            "ASCII ... -2.5",
        ),
    ],
    ids=["cut off", "checksum", "length", "damaged", "not gzip", "empty", "not ARPA", "half", "not capitals"],
)
def test_an_archive_that_cannot_be_unpacked_leaves_no_model(tmp_path, mirror, monkeypatch, capsys, archive, message):
    publish(mirror, monkeypatch, archive)
    assert fetch(tmp_path, mirror) == 1
    assert mentions(capsys.readouterr().err, f"{part_of(tmp_path)} ... {message}")
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa.gz.part"]


def test_a_full_disk_leaves_no_model_and_the_next_run_need_not_download_again(tmp_path, mirror, monkeypatch, capsys):
    class FullDisk(io.FileIO):
        def writelines(self, blocks):
            self.write(next(iter(blocks)))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    open_file = Path.open

    def open_on_full_disk(path, mode="r", **rest):
        return FullDisk(path, "w") if path.name.endswith(".unfinished") else open_file(path, mode, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_on_full_disk)
        assert fetch(tmp_path, mirror) == 1
    err = capsys.readouterr().err
    assert mentions(err, f"{arpa_of(tmp_path)} ... space left")
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa.gz.part"]
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0]


# The command in another process, with our tiny model; it sleeps in the middle of unpacking.
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
from recipes.librispeech import language_models
language_models.LANGUAGE_MODELS[{model!r}] = {facts}
def stop(text, lower_case=language_models.lower_case):
    yield next(lower_case(text))
    print("half unpacked", flush=True)
    time.sleep(60)
language_models.lower_case = stop
language_models.BLOCK_BYTES = 10_000
sys.exit(language_models.main(sys.argv[1:]))
"""


def start(folder: Path, mirror: Mirror) -> subprocess.Popen[str]:
    program = PROGRAM.format(model=MODEL, facts=facts(ARCHIVE))
    command = [sys.executable, "-c", program, *arguments(folder, mirror)]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "half unpacked\n"
    return process


def test_a_run_killed_while_it_unpacks_leaves_no_model_and_the_next_run_succeeds(tmp_path, mirror):
    process = start(tmp_path, mirror)
    process.kill()
    process.communicate(timeout=30)
    assert folder_contents(tmp_path) == [f".{MODEL}.arpa.unfinished", f"{MODEL}.arpa.gz.part"]
    assert fetch(tmp_path, mirror) == 0
    assert mirror.starts == [0]
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa"]
    assert arpa_of(tmp_path).read_bytes() == ARPA.lower()


def test_a_run_interrupted_while_it_unpacks_cleans_up_and_exits_with_130_without_a_traceback(tmp_path, mirror):
    process = start(tmp_path, mirror)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert mentions(err, "command again")
    assert "Traceback" not in err
    assert folder_contents(tmp_path) == [f"{MODEL}.arpa.gz.part"]
