"""N-gram models equal those calculated by hand, by plain code, by lmplz and by irstlm; KenLM can read them."""

import gzip
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.base.language_model import kneser_ney
from asr.base.language_model.kneser_ney import BOS, EOS, FALLBACK, SPECIAL, UNK, estimate, write_arpa
from asr.base.system import files
from asr.base.text.normalize import BY_WORDS, NORMALIZERS
from asr.errors import InputError
from asr.ngram import main as ngram
from asr.ngram import parse_size
from tests.conftest import ROOT, SHARED, needs_shared
from tests.refusals import mentions, refused
from tests.test_average import save

Gram = tuple[str, ...]
Sentences = list[list[str]]
LM_TEXT = SHARED / "text" / "lm_text_train.txt"
TLM = Path("/usr/lib/irstlm/bin/tlm")  # from Debian's package irstlm
ROUNDING = 1e-6  # rounding of a log10 with six decimals, and of its sum with a backoff


class Arpa:
    """An ARPA file, read and evaluated by plain code."""

    def __init__(self, path: Path) -> None:
        self.log_probs: dict[Gram, float] = {}
        self.backoffs: dict[Gram, float] = {}
        self.numbers: dict[int, int] = {}
        lines = iter(path.read_text(encoding="utf-8").split("\n"))
        assert next(lines) == "\\data\\"
        for line in lines:
            if match := re.fullmatch(r"ngram (\d+)=(\d+)", line):
                self.numbers[int(match[1])] = int(match[2])
            elif "\t" in line:
                log_prob, words, *backoff = line.split("\t")
                gram = tuple(words.split(" "))
                assert gram not in self.log_probs
                self.log_probs[gram] = float(log_prob)
                assert len(backoff) == (len(gram) < self.order), "the highest order has no backoff"
                self.backoffs[gram] = float(backoff[0]) if backoff else 0.0
            else:
                assert re.fullmatch(r"|\\\d-grams:|\\end\\", line)
        assert Counter(map(len, self.log_probs)) == Counter({n: number for n, number in self.numbers.items() if number})
        self.vocabulary = {word for word, *rest in self.log_probs if not rest}

    @property
    def order(self) -> int:
        return max(self.numbers)

    def log_prob(self, context: Gram, word: str) -> float:
        """Return log10 of the probability of a word of the vocabulary after a context."""
        if (*context, word) in self.log_probs:
            return self.log_probs[*context, word]
        return self.backoffs.get(context, 0.0) + self.log_prob(context[1:], word)

    def sentence(self, words: Sequence[str]) -> list[float]:
        """Return log10 of the probabilities of a sentence's words and of </s>."""
        known = ["<s>", *(word if word in self.vocabulary else "<unk>" for word in words), "</s>"]
        return [self.log_prob(tuple(known[max(0, i - self.order + 1) : i]), known[i]) for i in range(1, len(known))]

    def contexts(self) -> list[Gram]:
        """Return every n-gram that can be a context."""
        return [(), *(gram for gram in self.log_probs if len(gram) < self.order and gram[-1] != "</s>")]


def build(path: Path, sentences: Sentences, *options: str) -> Arpa:
    """Build a model of sentences with the command asr.ngram."""
    text = path.with_suffix(".txt")
    text.write_text("".join(" ".join(sentence) + "\n" for sentence in sentences))
    assert ngram([str(text), "-o", str(path), *options]) == 0
    return Arpa(path)


def estimated(path: Path, sentences: Sentences, order: int, thresholds: Sequence[int], memory: int = 1 << 30) -> Arpa:
    """Build a model of sentences with `estimate`, without the command."""
    words = [*SPECIAL, *sorted({word for sentence in sentences for word in sentence})]
    ids = [number for sentence in sentences for number in (BOS, *map(words.index, sentence), EOS)]
    with path.open("wb") as file:
        write_arpa(estimate(np.array(ids), len(words), order, thresholds=thresholds, memory=memory), words, file)
    return Arpa(path)


def random_sentences(seed: int, number: int, words: int = 60) -> Sentences:
    """Draw sentences of the words w0, w1, …, of which those with low numbers are frequent.

    With probability 0.3, the next word is not drawn but is the one with the next number, such as w6 after w5.
    """
    rng = random.Random(seed)
    sentences = []
    for _ in range(number):
        sentence: list[int] = []
        for _ in range(rng.randint(1, 12)):
            likely = sentence and rng.random() < 0.3
            sentence.append((sentence[-1] + 1) % words if likely else min(int(rng.paretovariate(0.7)), words) - 1)
        sentences.append([f"w{word}" for word in sentence])
    return sentences


def reference_model(sentences: Sentences, order: int, thresholds: Sequence[int]) -> dict[Gram, tuple[float, float]]:
    """Compute interpolated modified Kneser-Ney as published by Chen and Goodman: n-gram to (probability, backoff)."""
    raw: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
    for sentence in sentences:
        padded = ["<s>", *sentence, "</s>"]
        for n in range(1, order + 1):
            for i in range(len(padded) - n + 1):
                raw[n][tuple(padded[i : i + n])] += 1
    counts: list[Counter[Gram]] = [Counter() for _ in range(order + 1)]
    for n in range(1, order + 1):
        for gram in raw[n]:
            if n == order or gram[0] == "<s>":
                counts[n][gram] = raw[n][gram]
        if n < order:
            for longer in raw[n + 1]:
                if longer[1] != "<s>" and longer[1:][0] != "<s>":
                    counts[n][longer[1:]] += 1
    del counts[1][("<s>",)]  # never predicted

    vocabulary = {gram[0] for gram in counts[1]} | {"<unk>"}
    probabilities = {(): 1 / len(vocabulary)}
    weights: dict[Gram, float] = {}
    kept_grams = {("<unk>",), ("<s>",)}
    for n in range(1, order + 1):
        discounts = reference_discounts(counts[n])
        followers = defaultdict(list)
        for gram in counts[n]:
            followers[gram[:-1]].append(gram)
        for context, grams in followers.items():
            total = sum(counts[n][gram] for gram in grams)
            taken = 0.0
            for gram in grams:
                if n == 1 or raw[n][gram] > thresholds[n - 1]:
                    kept_grams.add(gram)
                    taken += discounts[min(counts[n][gram], 3) - 1]
                else:
                    taken += counts[n][gram]
            weights[context] = taken / total
            for gram in grams:
                own = counts[n][gram] - discounts[min(counts[n][gram], 3) - 1] if gram in kept_grams else 0
                probabilities[gram] = own / total + weights[context] * probabilities[gram[1:]]
    probabilities["<unk>",] = weights[()] / len(vocabulary)
    probabilities["<s>",] = 10**-99
    return {gram: (probabilities[gram], weights.get(gram, 1.0)) for gram in kept_grams}


def reference_discounts(counts: Counter[Gram]) -> tuple[float, ...]:
    n = Counter(counts.values())
    if 0 in (n[1], n[2], n[3]):
        return FALLBACK
    y = n[1] / (n[1] + 2 * n[2])
    discounts = tuple(j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3))
    return discounts if min(discounts) > 0 else FALLBACK


def assert_equal_to_reference(model: Arpa, expected: dict[Gram, tuple[float, float]]) -> None:
    assert model.log_probs.keys() == expected.keys()
    for gram, (probability, backoff) in expected.items():
        assert model.log_probs[gram] == pytest.approx(math.log10(probability), abs=ROUNDING), gram
        assert model.backoffs[gram] == pytest.approx(
            math.log10(backoff) if len(gram) < model.order else 0, abs=ROUNDING
        )


def test_the_model_of_two_sentences_equals_a_calculation_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text is <s> a b </s> and <s> a </s>. There are too few counts to estimate discounts, so they are 0.5, 1, 1.5.

    Counts of bigrams: `<s> a` 2, `a b` 1, `a </s>` 1, `b </s>` 1.
    A unigram's count is its number of different left neighbours: a 1 (<s>), b 1 (a), </s> 2 (a, b); the sum is 4.
        Discounts remove 0.5 + 0.5 + 1 of 4; this 1/2 is shared by <unk>, </s>, a, b: 1/8 each.
        P(<unk>) = 1/8    P(a) = P(b) = 0.5/4 + 1/8 = 1/4    P(</s>) = (2-1)/4 + 1/8 = 3/8    and their sum is 1.
    After <s>: the discount is 1 of 2, backoff 1/2: P(a|<s>) = 1/2 + 1/2 * 1/4 = 5/8
    After a: 0.5 + 0.5 of 2, backoff 1/2:  P(b|a) = 0.5/2 + 1/2 * 1/4 = 3/8   P(</s>|a) = 0.5/2 + 1/2 * 3/8 = 7/16
    After b: 0.5 of 1, backoff 1/2:        P(</s>|b) = 1/2 + 1/2 * 3/8 = 11/16
    """
    path = tmp_path / "lm.arpa"
    build(path, [["a", "b"], ["a"]], "--order", "2")
    expected = [
        *("\\data\\", "ngram 1=5", "ngram 2=4", ""),
        "\\1-grams:",
        f"{math.log10(1 / 8):.6f}\t<unk>\t0.000000",
        "-99.000000\t<s>\t-0.301030",
        f"{math.log10(3 / 8):.6f}\t</s>\t0.000000",
        f"{math.log10(1 / 4):.6f}\ta\t-0.301030",
        f"{math.log10(1 / 4):.6f}\tb\t-0.301030",
        "",
        "\\2-grams:",
        f"{math.log10(5 / 8):.6f}\t<s> a",
        f"{math.log10(7 / 16):.6f}\ta </s>",
        f"{math.log10(3 / 8):.6f}\ta b",
        f"{math.log10(11 / 16):.6f}\tb </s>",
        *("", "\\end\\", ""),
    ]
    assert path.read_text() == "\n".join(expected)
    printed = capsys.readouterr().out
    assert "2 sentences, 3 words, 5 in the vocabulary" in printed
    assert "Too little text to estimate discounts of order 1, 2: fixed discounts are used." in printed


CORPORA = st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=8), min_size=1, max_size=25)
THRESHOLDS = st.lists(st.integers(0, 3), max_size=3).map(lambda rest: [0, *sorted(rest)])


@settings(max_examples=80, deadline=None)
@given(CORPORA, st.integers(1, 6), THRESHOLDS)
def test_probabilities_equal_the_reference_and_sum_to_1_in_every_context(
    tmp_path_factory: pytest.TempPathFactory, sentences: Sentences, order: int, prune: list[int]
) -> None:
    thresholds = [*prune, *[prune[-1]] * order][:order]
    model = estimated(tmp_path_factory.mktemp("model") / "lm.arpa", sentences, order, thresholds)
    words = model.vocabulary - {"<s>"}
    for context in model.contexts():
        total = sum(10 ** model.log_prob(context, word) for word in words)
        # There is one rounding per order, each by a factor of at most 10**1e-6.
        assert total == pytest.approx(1, abs=1e-5), context
    for gram in model.log_probs:
        assert len(gram) == 1 or {gram[1:], gram[:-1]} <= model.log_probs.keys(), (
            "KenLM needs the suffix and the context"
        )
    assert_equal_to_reference(model, reference_model(sentences, order, thresholds))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("prune", [[0] * 6, [0, 1, 1, 1, 1, 1], [0, 0, 2, 2, 3, 3]])
def test_with_estimated_discounts_the_model_equals_that_of_a_plain_implementation(
    tmp_path: Path, order: int, prune: list[int]
) -> None:
    sentences, thresholds = random_sentences(seed=order, number=400), prune[:order]
    model = estimated(tmp_path / "lm.arpa", sentences, order, thresholds)
    expected = reference_model(sentences, order, thresholds)
    assert_equal_to_reference(model, expected)
    if order == 3:
        counts = Counter(tuple(["<s>", *s, "</s>"][i : i + 3]) for s in sentences for i in range(len(s)))
        assert reference_discounts(counts) != FALLBACK, "this test needs estimated discounts"


@pytest.mark.parametrize("order", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("spread", [1, 1500], ids=["in one column", "from order 4 on in two columns"])
def test_the_memory_limit_and_the_order_of_lines_do_not_change_the_model(
    tmp_path: Path, order: int, spread: int
) -> None:
    sentences = [[int(word[1:]) for word in sentence] for sentence in random_sentences(7, 50, words=30)]
    vocab_size = 30 * spread + 3

    def model(sentences: list[list[int]], memory: int) -> bytes:
        ids = np.concatenate([[BOS, *(3 + spread * word for word in words), EOS] for words in sentences])
        path = tmp_path / f"{memory}.arpa"
        with path.open("wb") as file:
            grams = estimate(ids.astype(np.int32), vocab_size, order, thresholds=[0] * order, memory=memory)
            write_arpa(grams, [*SPECIAL, *map(str, range(vocab_size - 3))], file)
        return path.read_bytes()

    expected = model(sentences, 1 << 30)
    for memory in (1, 4_000):  # the sorted runs have two blocks with memory=1, a few more with 4,000
        assert model(sentences[::-1], memory) == expected


def test_equal_texts_give_equal_bytes(tmp_path: Path) -> None:
    sentences = random_sentences(3, 100)
    build(tmp_path / "a.arpa", sentences)
    build(tmp_path / "b.arpa", sentences[::-1], "--memory", "1M")
    assert (tmp_path / "a.arpa").read_bytes() == (tmp_path / "b.arpa").read_bytes()


@pytest.mark.parametrize("options", [[], ["--order", "2"], ["--order", "6"], ["--prune", "0", "1", "2"]])
def test_kenlm_reads_the_model_and_gives_equal_scores(tmp_path: Path, options: list[str]) -> None:
    kenlm = pytest.importorskip("kenlm")
    model = build(tmp_path / "lm.arpa", random_sentences(1, 300), *options)
    words = sorted(model.vocabulary | {f"w{number}" for number in range(60)})
    assert len(words) > len(model.vocabulary), "some words are unknown"
    scorer = kenlm.Model(str(tmp_path / "lm.arpa"))
    for sentence in [*random_sentences(2, 20), words[-9:], []]:
        scores = [score for score, _, _ in scorer.full_scores(" ".join(sentence))]
        assert scores == pytest.approx(model.sentence(sentence), abs=1e-5)  # rounding of float32


@pytest.fixture(scope="module")
def real_text() -> tuple[Sentences, Sentences]:
    """Training sentences, and held-out sentences without unknown words."""
    lines = [NORMALIZERS["basic"](line).split() for line in LM_TEXT.read_text().split("\n")]
    train = [line for line in lines[:4000] if line]
    known = {word for line in train for word in line}
    return train, [line for line in lines[4000:] if line and known.issuperset(line)][:300]


def lines_of(sentences: Sentences, begin: str = "", end: str = "") -> str:
    return "".join(f"{begin}{' '.join(sentence)}{end}\n" for sentence in sentences)


def perplexity(model: Arpa, sentences: Sentences) -> float:
    scores = [score for sentence in sentences for score in model.sentence(sentence)]
    return 10 ** (-sum(scores) / len(scores))


@needs_shared
@pytest.mark.skipif(not TLM.is_file(), reason=f"needs irstlm (apt-get install irstlm); there is no {TLM}")
@pytest.mark.parametrize("order", [2, 3])
def test_the_perplexity_of_real_text_equals_that_of_irstlm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_text: tuple[Sentences, Sentences], order: int
) -> None:
    """irstlm differs from asr.ngram in two points; this test also compares it with asr.ngram changed in these points.

    irstlm does not discount unigrams (each has count / total), and the count of <unk> is the number of different words.
    """
    train, held_out = real_text
    for name, sentences in zip(("train", "test"), real_text, strict=True):
        (tmp_path / name).write_text(lines_of(sentences, "<s> ", " </s>"))
    command = [TLM, "-tr=train", f"-n={order}", "-lm=ImprovedKneserNey", "-ps=no", "-te=test", "-dub=0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", check=True)
    number, theirs = re.search(r"n=(\d+) LP=\S+ PP=(\S+)", ended.stdout).groups()  # type: ignore[union-attr]
    assert int(number) == sum(len(sentence) + 1 for sentence in held_out)
    ours = perplexity(build(tmp_path / "lm.arpa", train, "--order", str(order)), held_out)
    assert 0.9 * float(theirs) < ours < float(theirs)

    def counted(*given: Any, real: Any = kneser_ney._adjusted) -> Iterator[Any]:
        unigrams, *longer = real(*given)
        unigrams[UNK] = len(unigrams) - len(SPECIAL)
        yield from (unigrams, *longer)

    def discounts(adjusted: Any, real: Any = kneser_ney._discounts) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0) if adjusted[UNK] == len(adjusted) - len(SPECIAL) else real(adjusted)

    monkeypatch.setattr(kneser_ney, "_adjusted", counted)
    monkeypatch.setattr(kneser_ney, "_discounts", discounts)
    with np.errstate(divide="ignore"):  # the probability of <s> is 0
        alike = perplexity(build(tmp_path / "alike.arpa", train, "--order", str(order)), held_out)
    assert alike == pytest.approx(float(theirs), rel=1e-4)  # irstlm also counts <s> once, and rounds


@needs_shared
@pytest.mark.skipif(shutil.which("lmplz") is None, reason="needs KenLM's lmplz, which is not in the PATH")
@pytest.mark.parametrize(("order", "prune"), [(2, "0"), (3, "0"), (4, "0 1 2")])
def test_the_model_equals_that_of_lmplz(
    tmp_path: Path, real_text: tuple[Sentences, Sentences], order: int, prune: str
) -> None:
    model = build(tmp_path / "lm.arpa", real_text[0], "--order", str(order), "--prune", *prune.split())
    command = ["lmplz", "-o", str(order), "--prune", *prune.split(), "-S", "200M", "-T", str(tmp_path)]
    with (tmp_path / "lm.txt").open() as text, (tmp_path / "theirs.arpa").open("w") as output:
        subprocess.run(command, stdin=text, stdout=output, stderr=subprocess.DEVNULL, check=True)
    theirs = Arpa(tmp_path / "theirs.arpa")
    theirs.log_probs["<s>",] = -99  # lmplz writes 0; no score depends on it
    assert model.log_probs.keys() == theirs.log_probs.keys()
    for gram in model.log_probs:  # lmplz computes in float32
        assert abs(model.log_probs[gram] - theirs.log_probs[gram]) < 1e-5, gram
        assert abs(model.backoffs[gram] - theirs.backoffs[gram]) < 1e-5, gram


# Reading texts


def test_texts_are_normalised_and_read_from_several_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\ufeffDon\u2019t — “STOP”!\r\n\n...\n", encoding="utf-8")
    with gzip.open(tmp_path / "b.txt.gz", "wt", encoding="utf-8") as file:
        file.write("ÉTÉ don't")  # the last line has no line end
    output = tmp_path / "lm.arpa"
    ngram([str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz"), "-o", str(output), "--order", "2"])
    assert Arpa(output).vocabulary == {*SPECIAL, "don't", "stop", "été"}
    ngram([str(tmp_path / "a.txt"), "-o", str(output), "--normalizer", "as_written"])
    assert Arpa(output).vocabulary == {*SPECIAL, "Don\u2019t", "—", "“STOP”!", "..."}


@pytest.mark.parametrize("name", sorted(normalizer.__name__ for normalizer in BY_WORDS))
@settings(max_examples=300, deadline=None)
@given(
    text=st.text(
        st.sampled_from("aΣ\u03c3é\u0301'\u2019\u00a0\u2003\u3000 \t\x1c\x85\u00a8ﬁ-1\u200dİ") | st.characters()
    )
)
def test_normalizers_listed_as_word_by_word_do_not_depend_on_neighbouring_words(name: str, text: str) -> None:
    """asr.ngram relies on this: it normalises each different word only once."""
    normalize = NORMALIZERS[name]
    assert normalize(text).split() == [part for word in text.split() for part in normalize(word).split()]


@pytest.mark.skipif(find_spec("whisper_normalizer") is None, reason="whisper_normalizer is not installed")
def test_a_normalizer_that_depends_on_neighbouring_words_receives_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Twenty five dollars\n")
    output = tmp_path / "lm.arpa"
    ngram([str(tmp_path / "a.txt"), "-o", str(output), "--normalizer", "whisper_english"])
    assert Arpa(output).vocabulary == {*SPECIAL, "$25"}


def test_a_line_with_a_word_of_more_than_1000_bytes_is_named_and_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(f"one two\n{'x' * 1000} three\nfour {'é' * 501}\n", encoding="utf-8")
    assert ngram([str(text), "-o", str(tmp_path / "lm.arpa")]) == 0
    assert Arpa(tmp_path / "lm.arpa").vocabulary == {*SPECIAL, "one", "two", "x" * 1000, "three"}
    printed = capsys.readouterr()
    assert "2 sentences (left out: 1 lines that the tokenizer cannot encode)" in printed.out
    assert mentions(printed.err, f"{text}:3 ... word; got éé")


def test_a_text_without_line_ends_is_refused_and_the_limit_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asr.apps.language_models.text_lines.MAX_LINE_BYTES", 100)
    content = b"one\n" + b"two " * 30
    for name, written in (("text.txt", content), ("text.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        with refused(InputError, f"{name}:2 ... line"):
            ngram([str(tmp_path / name), "-o", str(tmp_path / "lm.arpa")])


def test_a_text_can_be_read_from_standard_input(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "asr.ngram", "-", "-o", str(tmp_path / "lm.arpa")]
    subprocess.run(command, cwd=ROOT, input=b"one two\nthree\n", check=True, capture_output=True)
    assert Arpa(tmp_path / "lm.arpa").vocabulary == {*SPECIAL, "one", "two", "three"}


def test_for_a_model_of_tokens_lines_that_the_tokenizer_cannot_spell_are_named_and_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save(tmp_path / "tokens.ckpt", texts=["ab c"])
    text = tmp_path / "text.txt"
    text.write_text("A b, c!\nab\nab d\n")
    assert ngram([str(text), "--tokens", str(model), "-o", str(tmp_path / "lm.arpa"), "--order", "2"]) == 0
    arpa = Arpa(tmp_path / "lm.arpa")
    assert arpa.vocabulary == {*SPECIAL, "a", "b", "c", "\u2581"}
    assert {("a", "\u2581"), ("\u2581", "b"), ("a", "b")} <= arpa.log_probs.keys()
    printed = capsys.readouterr()
    assert (
        "2 sentences (left out: 1 lines that the tokenizer cannot encode), 7 tokens, 7 in the vocabulary\n"
        in printed.out
    )
    assert mentions(printed.err, f"{text}:3 ... tokenizer ... 'd'")
    assert mentions(printed.err, "line is left")

    text.write_text("d\nd\n")
    with refused(InputError, "text ... tokenizer cannot encode"):
        ngram([str(text), "--tokens", str(model), "-o", str(tmp_path / "lm.arpa")])


# Errors


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "text ... no line"),
        (b"\n ...\n", "text ... without a word"),
        (b"fine\nna\xefve\n", "text.txt:2; got byte 0xef"),
        (b"fine\nbin\0ary\n", "text.txt:2 ... NUL"),
    ],
)
def test_a_file_without_text_is_reported_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with refused(InputError, message):
        ngram([str(tmp_path / "text.txt"), "-o", str(tmp_path / "lm.arpa")])
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-9], lambda content: b"text", lambda content: b"\x1f\x8b00"]
)
def test_a_damaged_gzip_file_is_reported_in_one_line(tmp_path: Path, damage: Any) -> None:
    (tmp_path / "text.gz").write_bytes(damage(gzip.compress(b"one two three\n" * 99)))
    with refused(InputError, "text.gz ... .gz"):
        ngram([str(tmp_path / "text.gz"), "-o", str(tmp_path / "lm.arpa")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.txt"], "none.txt ... text; got No such file"),
        (["."], "text; got Is a directory"),
        (["text.txt", "--order", "0"], "--order; got 0"),
        (["text.txt", "--order", "7"], "as KenLM requires; got 7"),
        (
            ["text.txt", "--prune", "1"],
            "--prune; got 1. Try 0 1 1",
        ),
        (["text.txt", "--prune", "0", "2", "1"], "got 0 2 1"),
        (["text.txt", "--prune", "0", "-1"], "got 0 -1"),
        (["text.txt", "--prune", "0", "0", "0", "0"], "at most 3 numbers; got 0 0 0 0"),
        (["text.txt", "--memory", "1T"], "--memory; got '1T'"),
        (["text.txt", "--memory", "1000"], "at least 1M"),
        (
            ["text.txt", "--normalizer", "x"],
            "normalizer; got 'x'",
        ),
        (["text.txt", "--tokens", "nowhere"], "nowhere"),
        (["text.txt", "-o", "text.txt/lm.arpa"], "--output ... directory"),
        (["text.txt", "-o", "."], "--output ... is a folder"),
        (["special.txt", "--normalizer", "as_written"], "special.txt:2 ... text"),
    ],
)
def test_invalid_options_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    (tmp_path / "text.txt").write_text("one two\n")
    (tmp_path / "special.txt").write_text("one\n<s> two </s>\n")
    monkeypatch.chdir(tmp_path)
    with refused(InputError, message):
        ngram([*(["-o", "lm.arpa"] if "-o" not in arguments else []), *arguments])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["special.txt", "text.txt"]


def test_a_full_disk_is_reported_in_one_line_and_the_old_model_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    build(tmp_path / "lm.arpa", [["old"]])
    (tmp_path / "new.txt").write_text("new\n")
    new = [str(tmp_path / "new.txt"), "-o", str(tmp_path / "lm.arpa")]
    for module, function, message in (
        (files.os, "fsync", "lm.arpa ... space left"),
        (kneser_ney, "_windows", "TMPDIR ... space left"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(module, function, full)
            with refused(InputError, message):
                ngram(new)
    assert "old" in Arpa(tmp_path / "lm.arpa").vocabulary
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lm.arpa", "lm.txt", "new.txt"]


def test_a_killed_process_leaves_no_files(tmp_path: Path) -> None:
    """There is no incomplete model, and no temporary file, because temporary files have no names."""
    (tmp_path / "tmp").mkdir()
    code = (
        "import os, signal, asr.base.language_model.kneser_ney as k, asr.ngram\n"
        "merge = k._merge\n"
        "def die(*given): yield next(merge(*given)); os.kill(os.getpid(), signal.SIGKILL)\n"
        "k._merge = die\n"
        f"asr.ngram.main([{str(tmp_path / 'text.txt')!r}, '-o', {str(tmp_path / 'lm.arpa')!r}])\n"
    )
    (tmp_path / "text.txt").write_text(lines_of(random_sentences(1, 100)))
    environment = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert ended.returncode == -9, ended.stderr
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (tmp_path / "lm.arpa").exists()


@pytest.mark.parametrize(
    ("text", "size"), [("1M", 1 << 20), ("3g", 3 << 30), ("2000000", 2_000_000), ("2000k", 2_048_000)]
)
def test_sizes_of_memory_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_help_imports_no_torch() -> None:
    code = "import sys, runpy\nsys.argv = ['ngram', '--help']\n"
    code += (
        "try: runpy.run_module('asr.ngram', run_name='__main__')\nexcept SystemExit as ended: assert not ended.code\n"
    )
    code += "assert not {'torch', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True)


def test_a_manifest_can_be_given_as_a_text(tmp_path: Path) -> None:
    lines = ["one two", "two three two", "one"]
    entries = [{"audio_filepath": "x.wav", "duration": 1.0, "text": line, "id": line} for line in lines]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    (tmp_path / "plain.txt").write_text("".join(line + "\n" for line in lines))
    for name in ("train.jsonl", "plain.txt"):
        assert ngram([str(tmp_path / name), "--order", "2", "-o", str(tmp_path / f"{name}.arpa")]) == 0
    assert (tmp_path / "train.jsonl.arpa").read_bytes() == (tmp_path / "plain.txt.arpa").read_bytes()
