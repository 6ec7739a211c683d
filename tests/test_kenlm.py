"""N-gram models as KenLM reads them: scores, words, and files that are damaged."""

import copy
import gzip
import math
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flashlight.lib.text.decoder.kenlm", reason="flashlight-text is not installed")

from asr.decode.kenlm import NOT_WORDS, NgramModel, vocabulary
from asr.errors import InputError
from tests.fusion import Trigrams

WORDS = ["new", "york", "é", "x<unk>", "<unk>y", "<S>", "a.b", "日本"]
BUILD_BINARY = os.environ.get("BUILD_BINARY") or shutil.which("build_binary") or ""
needs_build_binary = pytest.mark.skipif(
    not BUILD_BINARY, reason="KenLM's build_binary is neither in the PATH nor named by BUILD_BINARY"
)


@pytest.fixture
def model() -> Trigrams:
    return Trigrams(WORDS, random.Random(0))


@pytest.fixture
def arpa(tmp_path: Path, model: Trigrams) -> Path:
    return Path(model.write(tmp_path / "lm.arpa"))


def sentences(count: int = 50) -> list[list[str]]:
    draw = random.Random(1)
    return [[], *(draw.choices([*WORDS, "unheard", "Y"], k=draw.randrange(9)) for _ in range(count))]


def check_scores(path: Path, model: Trigrams, tolerance: float = 1e-5) -> None:
    """`tolerance` is of a sum of float32."""
    asked = NgramModel(path)
    assert set(asked.words) == set(WORDS)
    for words in sentences():
        state, scores = asked.start(), []
        for word in words:
            log_prob, state = asked.score(state, word)
            scores.append(log_prob)
        expected = [model.log_prob(["<s>", *words[:number]], word) for number, word in enumerate(words)]
        assert scores == pytest.approx(expected, abs=tolerance)
        assert asked.end(state) == pytest.approx(model.log_prob(["<s>", *words], "</s>"), abs=tolerance)


def test_scores_are_natural_logarithms_of_a_plain_backoff_model(arpa: Path, model: Trigrams) -> None:
    check_scores(arpa, model)
    assert vocabulary(arpa) == [*NOT_WORDS, *WORDS]


@needs_build_binary
@pytest.mark.parametrize("structure", ["probing", "trie", "-a 22 trie"])
def test_a_binary_says_what_its_arpa_does(arpa: Path, model: Trigrams, structure: str) -> None:
    """Some of the words end as the first of all does, <unk>, from which a binary's words are read."""
    binary = arpa.with_suffix(".bin")
    subprocess.run([BUILD_BINARY, *structure.split(), arpa, binary], check=True, capture_output=True)
    assert sorted(vocabulary(binary)) == sorted([*NOT_WORDS, *WORDS])
    assert vocabulary(binary)[0] == "<unk>"
    check_scores(binary, model)


@needs_build_binary
def test_a_binary_without_its_words_and_one_cut_short_are_named(arpa: Path) -> None:
    binary = arpa.with_suffix(".bin")
    subprocess.run([BUILD_BINARY, "-v", "probing", arpa, binary], check=True, capture_output=True)
    with pytest.raises(InputError, match=r"lm\.bin: .* its words are not in it: build it without -v, or give the ARPA"):
        NgramModel(binary)
    subprocess.run([BUILD_BINARY, "probing", arpa, binary], check=True, capture_output=True)
    content = binary.read_bytes()
    for size in (60, 120, 300, len(content) - 60, len(content) - 1):
        binary.write_bytes(content[:size])
        check_error(binary)


def test_nothing_is_said_on_the_terminal_while_a_model_is_loaded(arpa: Path, capfd: pytest.CaptureFixture[str]) -> None:
    NgramModel(arpa)
    os.write(2, b"from here on")
    assert capfd.readouterr() == ("", "from here on")


def check_error(path: Path) -> str:
    """Check that loading fails in one line that begins with the path; return the rest."""
    with pytest.raises(InputError) as error:
        NgramModel(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.count(str(path)) == 1
    assert message.startswith(f"{path}: ")
    assert len(message) < 400
    return message.removeprefix(f"{path}: ")


ONE_LINE: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    "empty": (lambda text: "", "it begins otherwise"),
    "a text": (lambda text: "We went to New York.\n", "it begins otherwise"),
    "compressed": (lambda text: gzip.compress(text.encode()), r"ARPA (not compressed)"),
    "random bytes": (lambda text: random.Random(0).randbytes(5000), "it begins otherwise"),
    "cut in its head": (lambda text: text[:8], "must have an entry <unk>"),
    "cut in its words": (lambda text: text[: text.index("york")], "1-grams hold the line"),
    "cut behind its words": (lambda text: text[: text.index("\\2-grams")], "KenLM says"),
    "cut in the longest": (lambda text: text[: text.index("\\end\\") - 20], "KenLM says"),
    "without its end": (lambda text: text.replace("\\end\\", ""), "KenLM says"),
    "a wrong count": (lambda text: text.replace("ngram 1=11", "ngram 1=12"), "KenLM says"),
    "no count": (lambda text: text.replace("ngram 1=11", "ngram 1=many"), "KenLM says"),
    "a count beyond memory": (lambda text: text.replace("ngram 3=", "ngram 3=99999999"), "KenLM says"),
    "no number": (lambda text: text.replace("\tnew\t", "\tnew\tmuch", 1), "KenLM says"),
    "a probability above 1": (lambda text: text.replace("\n-", "\n", 1), "KenLM says"),
    "a word twice": (lambda text: text.replace("york", "new"), "Duplicate entry in dictionary 'new'"),
    "an unheard-of word": (lambda text: text[::-1].replace("kroy", "kroj", 1)[::-1], "Word jork was not seen"),
    "no <unk>": (lambda text: text.replace("\t<unk>", "\tunk"), "must have an entry <unk>; this one has none"),
    "no </s>": (lambda text: text.replace("</s>", "s"), "KenLM says"),
    "not UTF-8": (lambda text: text.encode().replace("é".encode(), b"\xe9"), "can't decode byte 0xe9"),
}


@pytest.mark.parametrize("damage", ONE_LINE)
def test_a_damaged_model_is_one_clear_error(arpa: Path, damage: str, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, reason = ONE_LINE[damage]
    spoilt = spoil(arpa.read_text(encoding="utf-8"))
    arpa.write_bytes(spoilt if isinstance(spoilt, bytes) else spoilt.encode())
    assert reason in check_error(arpa)
    assert capfd.readouterr().err == ""


def test_a_file_that_is_not_there_or_is_a_folder_is_named(tmp_path: Path) -> None:
    assert (
        check_error(tmp_path / "none.arpa") == "must be a language model that can be read; No such file or directory."
    )
    assert check_error(tmp_path) == "must be a language model that can be read; Is a directory."


def test_contexts_of_a_text_that_is_done_are_forgotten(arpa: Path) -> None:
    """KenLM's contexts keep those reached from them; the beginning must not outlive its text."""
    asked = NgramModel(arpa)
    first, second = asked.start(), asked.start()
    asked.score(first, "new")
    assert len(first.children) == 1
    assert len(second.children) == 0
    assert math.isfinite(asked.end(second))


def test_a_copy_shares_the_model(arpa: Path) -> None:
    model = NgramModel(arpa)  # a moving average of a training's weights copies the whole recogniser
    assert copy.deepcopy({"decode": model})["decode"] is model
