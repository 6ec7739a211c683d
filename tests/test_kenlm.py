"""N-gram models read by KenLM: scores, words, and damaged files."""

import copy
import gzip
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.refusals import check_refusal, mentions, refused

pytest.importorskip("kenlm", reason="camel-kenlm is not installed")

import kenlm

from asr.base.language_model.kenlm import BINARY_HEAD, NOT_WORDS, NgramModel, vocabulary
from asr.components.decode.fusion.lexicon import read_lexicon
from asr.errors import InputError
from tests.conftest import ROOT
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
    """Compare all scores; the default tolerance is the rounding error of a sum in float32."""
    ngram_model = NgramModel(path)
    assert set(ngram_model.words) == set(WORDS)
    for words in sentences():
        state, scores = ngram_model.start(), []
        for word in words:
            log_prob, state = ngram_model.score(state, word)
            scores.append(log_prob)
        expected = [model.log_prob(["<s>", *words[:number]], word) for number, word in enumerate(words)]
        assert scores == pytest.approx(expected, abs=tolerance)
        assert ngram_model.end(state) == pytest.approx(model.log_prob(["<s>", *words], "</s>"), abs=tolerance)


def test_scores_equal_the_natural_logarithms_of_a_plain_backoff_model(arpa: Path, model: Trigrams) -> None:
    check_scores(arpa, model)
    assert vocabulary(arpa) == [*NOT_WORDS, *WORDS]


@needs_build_binary
@pytest.mark.parametrize("structure", ["probing", "trie", "-a 22 trie"])
def test_a_binary_gives_the_scores_of_its_arpa_file(arpa: Path, model: Trigrams, structure: str) -> None:
    """Some words contain "<unk>", which marks the start of the words in a binary."""
    binary = arpa.with_suffix(".bin")
    subprocess.run([BUILD_BINARY, *structure.split(), arpa, binary], check=True, capture_output=True)
    assert sorted(vocabulary(binary)) == sorted([*NOT_WORDS, *WORDS])
    assert vocabulary(binary)[0] == "<unk>"
    check_scores(binary, model)


@needs_build_binary
def test_a_binary_that_is_truncated_or_lacks_its_words_is_named(arpa: Path) -> None:
    binary = arpa.with_suffix(".bin")
    subprocess.run([BUILD_BINARY, "-v", "probing", arpa, binary], check=True, capture_output=True)
    with refused(InputError, "lm.bin ... ARPA"):
        NgramModel(binary)
    subprocess.run([BUILD_BINARY, "probing", arpa, binary], check=True, capture_output=True)
    content = binary.read_bytes()
    for size in (60, 120, 300, len(content) - 60, len(content) - 1):
        binary.write_bytes(content[:size])
        check_error(binary)


def test_loading_a_model_prints_nothing_to_the_terminal(arpa: Path, capfd: pytest.CaptureFixture[str]) -> None:
    NgramModel(arpa)
    os.write(2, b"from here on")
    assert capfd.readouterr() == ("", "from here on")


def check_error(path: Path) -> str:
    """Check that loading fails in one line that begins with the path; return the rest of the line."""
    with pytest.raises(InputError) as error:
        NgramModel(path)
    message = str(error.value)
    assert "\n" not in message
    assert message.count(str(path)) == 1
    assert message.startswith(f"{path}: ")
    assert len(message) < 400
    return message.removeprefix(f"{path}: ")


ONE_LINE: dict[str, tuple[Callable[[str], str | bytes], str]] = {
    "empty": (lambda text: "", "begins like neither"),
    "a text": (lambda text: "We went to New York.\n", "begins like neither"),
    "compressed": (lambda text: gzip.compress(text.encode()), "uncompressed ARPA"),
    "random bytes": (lambda text: random.Random(0).randbytes(5000), "begins like neither"),
    "cut in its head": (lambda text: text[:8], "line 2 ... ngram 1=12"),
    "cut in its words": (
        lambda text: text[: text.index("york")],
        "line 11 ... 1-gram",
    ),
    "cut after its words": (
        lambda text: text[: text.index("\\2-grams")],
        r"line 18 ... \2-grams: ... file ends",
    ),
    "cut in the longest n-grams": (
        lambda text: text[: text.index("\\end\\") - 20],
        "3-gram",
    ),
    "without its end": (lambda text: text.replace("\\end\\", ""), r"\end\ ... file ends"),
    "a wrong count": (
        lambda text: text.replace("ngram 1=11", "ngram 1=12"),
        "header ... 12 1-grams ... 11",
    ),
    "no count": (
        lambda text: text.replace("ngram 1=11", "ngram 1=many"),
        "line 2 ... ngram 1=12",
    ),
    "a count beyond memory": (lambda text: text.replace("ngram 3=", "ngram 3=99999999"), "3-grams ... 48"),
    "no number": (lambda text: text.replace("\tnew\t", "\tnew\tmuch", 1), "line 10 ... 1-gram"),
    "a probability above 1": (lambda text: text.replace("\n-", "\n", 1), "line 7 ... 1-gram"),
    "text before it": (lambda text: "A model of 3 words\n\n" + text, "other text"),
    "an unheard-of word": (lambda text: text[::-1].replace("kroy", "kroj", 1)[::-1], "jork"),
    "no </s>": (lambda text: text.replace("</s>", "s"), "KenLM reports"),
    "not UTF-8": (lambda text: text.encode().replace("é".encode(), b"\xe9"), "can't decode byte 0xe9"),
}


@pytest.mark.parametrize("damage", ONE_LINE)
def test_a_damaged_model_is_reported_in_one_line(arpa: Path, damage: str, capfd: pytest.CaptureFixture[str]) -> None:
    spoil, reason = ONE_LINE[damage]
    spoilt = spoil(arpa.read_text(encoding="utf-8"))
    arpa.write_bytes(spoilt if isinstance(spoilt, bytes) else spoilt.encode())
    assert mentions(check_error(arpa), reason)
    assert capfd.readouterr().err == ""


def test_an_absent_file_and_a_folder_are_named(tmp_path: Path) -> None:
    check_refusal(check_error(tmp_path / "none.arpa"), "No such file")
    check_refusal(check_error(tmp_path), "Is a directory")


def test_a_copy_shares_the_model(arpa: Path) -> None:
    model = NgramModel(arpa)  # training copies the recogniser and its model for a moving average of weights
    assert copy.deepcopy({"decode": model})["decode"] is model


# ---- files that would make KenLM read beyond its memory: another process loads them, and must not crash

LOAD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from asr.base.language_model.kenlm import NgramModel
from asr.errors import InputError
try:
    NgramModel(sys.argv[1])
except InputError as error:
    print(error)
"""


def load_apart(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("count", ["-4", "-2", "18446744073709551612"])
def test_an_invalid_count_is_refused_before_kenlm_allocates_memory_for_it(arpa: Path, order: int, count: str) -> None:
    arpa.write_text(re.sub(rf"ngram {order}=\d+", f"ngram {order}={count}", arpa.read_text()))
    message = load_apart(LOAD, arpa)
    assert mentions(message, f"line {order + 1} ... ngram {order}=12")


HEADS = {
    "orders begin at 2": (lambda text: text.replace("ngram 1=11\n", ""), "line 2 ... ngram 1=12"),
    "an order twice": (lambda text: text.replace("ngram 2=", "ngram 1="), "line 3 ... ngram 2=12"),
    "seven orders": (
        lambda text: text.replace("\n\n", "\n" + "".join(f"ngram {n}=0\n" for n in (4, 5, 6, 7)) + "\n", 1),
        "line 8 ... 7-grams ... 6 ... lmplz -o 6",
    ),
    "no count at all": (lambda text: re.sub(r"ngram \d=\d+\n", "", text), "header ... count"),
    "a vocabulary beyond memory": (lambda text: text.replace("1=11", "1=10000001"), "at most 10,000,000 1-grams"),
    "one word more": (lambda text: text.replace("1=11", "1=10"), "10 1-grams"),
    "sections exchanged": (lambda text: text.replace("\\2-", "\\9-"), "\\2-grams ... \\9-grams"),
    "two words as a 1-gram": (lambda text: text.replace("\tnew\t", "\tnew york new\t", 1), "line 10 ... 1-gram"),
    "not a number": (lambda text: text.replace("\n-", "\n-nan", 1), "line 7 ... 1-gram"),
    "probability 0": (
        lambda text: re.sub(r"\n-[\d.]+\t<unk>", "\n-inf\t<unk>", text, count=1),
        "line 7 ... 1-gram",
    ),
    "probability 0 of the end": (
        lambda text: re.sub(r"\n\S+\t</s>", "\n-inf\t</s>", text, count=1),
        "1-gram ... -99",
    ),
    "probability 0 of a word": (
        lambda text: re.sub(r"\n\S+\tnew\t", "\n-inf\tnew\t", text),
        "line 10 ... 1-gram",
    ),
    "infinite in 32 bits": (lambda text: re.sub(r"\n-[\d.]+\t<", "\n-1e39\t<", text, count=1), "line 7 ... 1-gram"),
    "a null byte": (lambda text: text.replace("york", "yo\0k", 1), "null byte"),
    "text after its end": (lambda text: text + "\n-1\ta\n", "because it follows"),
    "a word of 1,001 bytes": (lambda text: text.replace("york", "y" * 1001, 1), "line 11 ... 1,000 bytes"),
    "a word of 5 MB": (lambda text: text.replace("york", "y" * 5_000_000, 1), "line 11 ... 1-gram"),
}


def test_a_binary_of_a_higher_order_than_kenlm_reads_is_refused_with_a_cure(tmp_path: Path) -> None:
    path = tmp_path / "seven.bin"
    path.write_bytes(BINARY_HEAD.ljust(88, b"\0") + b"\7" + bytes(100))
    assert mentions(check_error(path), "order 7 ... lmplz -o 6")


@pytest.mark.parametrize("damage", HEADS)
def test_content_that_contradicts_the_header_is_named_before_kenlm_reads_it(arpa: Path, damage: str) -> None:
    spoil, reason = HEADS[damage]
    arpa.write_text(spoil(arpa.read_text(encoding="utf-8")), encoding="utf-8")
    assert mentions(check_error(arpa), reason)


def test_files_written_by_other_tools_are_read(arpa: Path, model: Trigrams) -> None:
    """The file has Windows line ends, aligned counts, exponents, and probabilities of 1 and 0; a back-off is absent."""
    text = arpa.read_text(encoding="utf-8")
    text = re.sub(r"\tnew york(\t\S+)?", r"\tnew york", text)
    text = re.sub(r"ngram (\d)=(\d+)", r"ngram  \1=     \2", text).replace("\n", "\r\n")
    text = re.sub(r"-[\d.]+(\t日本\t)-[\d.]+", r"-1.5e-3\g<1>1e-05", text, count=1)
    text = re.sub(r"-[\d.]+(\ta\.b\t)", r"0\1", text, count=1)
    text = re.sub(r"-[\d.]+(\t<s>\t)", r"-99\1", text, count=1)
    arpa.write_bytes(b"\n# by hand\n" + text.encode())
    ngram_model = NgramModel(arpa)
    assert set(ngram_model.words) == set(WORDS)
    [backoff] = map(float, re.findall(r"\t<s>\t(\S+)", text))  # base 10, as are -1.5e-3 and 0
    scores = [ngram_model.score(ngram_model.start(), word)[0] for word in ("a.b", "日本")]
    assert scores == pytest.approx([math.log(10) * backoff, math.log(10) * (backoff - 1.5e-3)], abs=1e-5)


KENLM_READS: dict[str, Callable[[str], str]] = {
    "-inf for <s>, as in the tutorial of wav2vec2": lambda text: re.sub(
        r"\n\S+\t<s>\t", "\n-inf\t<s>\t", text, count=1
    ),
    "-inf for <s> without a back-off": lambda text: re.sub(r"\n\S+\t<s>\t\S+", "\n-inf\t<s>", text, count=1),
    "</s> twice": lambda text: twice(text, "</s>"),
    "<s> twice": lambda text: twice(text, "<s>"),
    "<unk> twice": lambda text: twice(text, "<unk>"),
    "a word twice": lambda text: twice(text, "york"),
    "<UNK>, as in Kaldi": lambda text: re.sub(r"(?<=[\t ])<unk>(?=\s)", "<UNK>", text),
    "<unk> and <UNK>": lambda text: twice(text, "<unk>").replace("<unk>\t", "<UNK>\t", 1),
    "no <unk>, as in SRILM": lambda text: re.sub(r"\n\S+\t<unk>\t.*", "", text, count=1).replace("1=11", "1=10"),
    "comments of any length": lambda text: f"# {40 * 'long '}\n\n#\n{2000 * '# short'}\n \n{text}",
}


def twice(text: str, word: str) -> str:
    """Return a model that has the 1-gram of a word twice, the second time with another probability."""
    line = next(line for line in text.splitlines() if line.split("\t")[1:2] == [word])
    other = "\t".join(["-2.5", *line.split("\t")[1:]])
    return text.replace(line, f"{line}\n{other}", 1).replace("1=11", "1=12")


@pytest.mark.parametrize("form", KENLM_READS)
def test_files_that_kenlm_reads_are_read_with_the_scores_of_kenlm(arpa: Path, form: str) -> None:
    arpa.write_text(KENLM_READS[form](arpa.read_text(encoding="utf-8")), encoding="utf-8")
    theirs = kenlm.Model(str(arpa))
    ours = NgramModel(arpa)
    assert set(ours.words) == set(WORDS)
    assert set(read_lexicon(arpa)) == set(WORDS)
    for words in sentences():
        state, scores = ours.start(), []
        for word in words:
            score, state = ours.score(state, word)
            scores.append(score)
        scores.append(ours.end(state))
        expected = [score * math.log(10) for score, _, _ in theirs.full_scores(" ".join(words))]
        assert scores == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("piece", [64, 1000])
def test_an_arpa_file_read_in_pieces_of_any_size_gives_the_same_words_and_errors(
    arpa: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.base.language_model.arpa._PIECE", piece)
    assert vocabulary(arpa) == [*NOT_WORDS, *WORDS]
    arpa.write_text(arpa.read_text().replace("\\end\\", "-1\tnew york\n\\end\\"))
    assert mentions(check_error(arpa), r"line 100 ... \end\ ... b'-1\tnew york\n'")


MUTATE = """
import collections, random, re, sys
from asr.base.language_model.kenlm import NgramModel
from asr.errors import InputError
from tests.fusion import Trigrams
from pathlib import Path
import resource

resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
NUMBERS = ["0", "-1", "-4", "7", "1e9", "-1e39", "1e-46", "nan", "-inf", str(2**31), str(2**64 - 4), "9" * 30, "0x7f"]


def mutate(lines, draw):
    where = draw.randrange(len(lines)) if draw.random() < 0.7 else draw.randrange(min(5, len(lines)))
    match draw.randrange(5):
        case 0 | 1:
            numbers = list(re.finditer(rb"-?[0-9.]+", lines[where]))
            if numbers:
                begin, end = draw.choice(numbers).span()
                lines[where] = lines[where][:begin] + draw.choice(NUMBERS).encode() + lines[where][end:]
        case 2:
            del lines[where : where + draw.randrange(1, 4)]
        case 3:
            lines.insert(where, draw.choice(lines))
        case 4:
            content = bytearray(lines[where] + b" ")
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            lines[where] = bytes(content)


path, outcomes = Path(sys.argv[1]), collections.Counter()
for seed in range(400):
    draw = random.Random(seed)
    Trigrams(["a", "b", "c"][: draw.randrange(1, 4)], draw).write(path)
    lines = path.read_bytes().split(b"\\n")
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        mutate(lines, draw)
    path.write_bytes(b"\\n".join(lines))
    try:
        model = NgramModel(path)
        state = model.start()
        for word in ("a", "b", "unheard", "c", "a", "b", "c"):
            _, state = model.score(state, word)
        model.end(state)
        outcomes["loaded"] += 1
    except InputError as error:
        assert "\\n" not in str(error), error
        outcomes["refused"] += 1
print(outcomes["loaded"], outcomes["refused"])
"""


def test_a_randomly_changed_model_loads_or_is_refused(tmp_path: Path) -> None:
    loaded, refused = map(int, load_apart(MUTATE, tmp_path / "lm.arpa").split())
    assert loaded > 20
    assert refused > 200
