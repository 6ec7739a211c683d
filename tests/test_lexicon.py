"""Lexicons: prefixes of their words, their formats, and limits of size."""

import os
import random
import threading
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.components.decode.fusion import lexicon
from asr.components.decode.fusion.lexicon import Words, read_lexicon
from asr.errors import InputError
from tests.refusals import refused


@given(st.lists(st.text("ab", min_size=1, max_size=12), max_size=12), st.integers(1, 12))
def test_prefixes_equal_those_of_a_plain_loop_for_any_number_of_queries(words: list[str], long: int) -> None:
    plain = {word[:end] for word in words for end in range(1, len(word) + 1)}
    queries = plain | {beginning + letter for beginning in plain for letter in "ab"} | {"", "a", "b", "ab"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lexicon, "LONG", long)
        beginnings = Words(words).beginnings
        assert {text for text in queries if text in beginnings} == plain


def test_the_memory_for_long_words_is_proportional_to_their_lengths() -> None:
    """These words take 1 MB; all their prefixes would take 500 MB."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=1000)) for _ in range(1000)]
    tracemalloc.start()
    beginnings = Words(words).beginnings
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    assert all(word[:end] in beginnings for word in words[:20] for end in (1, 40, 41, 999, 1000))
    assert words[0] + "a" not in beginnings


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("one\ntwo\n" + "x" * 5_000_000, ":3: a line ... 10,000 characters"),
        ("one\n" + "\u00e9" * 501 + " spelled so\n", ":2: a word ... 1,000 bytes; got '\u00e9"),
        (
            "\\data\\\nngram 1=2\n\n\\1-grams:\n-1\tone\n-1\t" + "x" * 5_000_000 + "\n\n\\end\\\n",
            ": a lexicon ... ARPA ... line 6 ... 1-gram",
        ),
    ],
    ids=["line", "word", "ARPA"],
)
def test_the_error_for_an_endless_word_names_the_limit_and_the_line(tmp_path: Path, content: str, reason: str) -> None:
    path = tmp_path / "lexicon"
    path.write_text(content, encoding="utf-8")
    with refused(InputError, f"{path}{reason}") as error:
        read_lexicon(path)
    assert len(str(error.value)) < 500


def test_ignored_pronunciations_are_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "plain").write_text("one\ntwo \n\n")
    assert read_lexicon(tmp_path / "plain") == ["one", "two"]
    assert caplog.messages == []
    lexicon = tmp_path / "lexicon"
    lexicon.write_text("one W AH N\ntwo\nnew york\n")
    assert read_lexicon(lexicon) == ["one", "two", "new"]
    message = f"{lexicon}: 2 of 3 lines have more than one entry; only the first entry is used (first such line: 'one')"
    assert caplog.messages == [message]


def test_words_beyond_the_memory_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicon, "MAX_VOCABULARY", 3)
    (tmp_path / "lexicon").write_text("a\nb\n\nc\nd\n")
    with refused(InputError, "lexicon:5 ... have at most"):
        read_lexicon(tmp_path / "lexicon")


def test_a_lexicon_read_from_a_pipe_includes_its_first_word(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    words = [f"word{number}" for number in range(1000)]
    writer = threading.Thread(target=lambda: (tmp_path / "pipe").write_text("\n".join(words)), daemon=True)
    writer.start()
    assert read_lexicon(tmp_path / "pipe") == words


def test_a_lexicon_is_never_read_as_a_binary_however_it_begins(tmp_path: Path) -> None:
    """KenLM's binaries are unsafe, and the lexicon of a bundle may be untrusted."""
    path = tmp_path / "lexicon"
    path.write_bytes(b"mmap lm http://kheafield.com/code \\data\\ " + b"\1" * 70 + b"<unk>\0word\0" * 9)
    message = "ARPA ... null byte"
    with refused(InputError, message):
        read_lexicon(path)
