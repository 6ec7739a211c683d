"""Mixtures of n-gram models, extra words and perplexity, compared with plain loops over a small vocabulary."""

import gzip
import json
import math
import re
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.apps.language_models.extra_words import add_words, extend
from asr.apps.language_models.interpolation import em_step, fit_weights, interpolate, mix
from asr.apps.language_models.perplexity_table import perplexity
from asr.base.language_model.kneser_ney import BOS, EOS, SPECIAL, UNK, NGrams, estimate
from asr.base.language_model.query import DevText
from asr.errors import InputError
from asr.ngram import main as ngram
from tests.refusals import check_refusal, refused
from tests.test_ngram import THRESHOLDS, Arpa, Sentences, lines_of, random_sentences

Gram = tuple[int, ...]
LETTERS = "abcde"
WORDS = [*SPECIAL, *LETTERS]
CORPORA = st.lists(st.lists(st.sampled_from(LETTERS), min_size=1, max_size=8), min_size=1, max_size=25)
WEIGHTS = st.lists(st.floats(0.001, 1), min_size=2, max_size=3)
EXACT = 1e-9  # sums of a few float64 numbers with a relative error of 1e-15 each


class Plain:
    """The listed n-grams of a model in dictionaries, and the back-off recursion of ARPA files."""

    def __init__(self, model: Sequence[NGrams], vocab_size: int) -> None:
        self.order, self.vocab_size = len(model), vocab_size
        self.probs: dict[Gram, float] = {}
        self.backoffs: dict[Gram, float] = {}
        grams: list[Gram] = [()]
        for own in model:
            grams = [(*grams[key // vocab_size], key % vocab_size) for key in own.keys.tolist()]
            for gram, log_prob, backoff, is_kept in zip(grams, own.log_probs, own.backoffs, own.kept, strict=True):
                if is_kept:
                    self.probs[gram], self.backoffs[gram] = 10**log_prob, 10**backoff

    def prob(self, context: Gram, word: int) -> float:
        if (*context, word) in self.probs:
            return self.probs[*context, word]
        return self.backoffs.get(context, 1.0) * self.prob(context[1:], word)

    def contexts(self) -> list[Gram]:
        """Return every n-gram that can be a context."""
        return [(), *(gram for gram in self.probs if len(gram) < self.order and gram[-1] != EOS)]

    def sum_after(self, context: Gram) -> float:
        return sum(self.prob(context, word) for word in range(self.vocab_size) if word != BOS)


def ids_of(sentences: Sentences, words: Sequence[str] = WORDS) -> Any:
    numbers = {word: number for number, word in enumerate(words)}
    return np.array(
        [number for sentence in sentences for number in (BOS, *(numbers.get(w, UNK) for w in sentence), EOS)]
    )


def model_of(
    sentences: Sentences, order: int, prune: Sequence[int] = (0,), words: Sequence[str] = WORDS
) -> list[NGrams]:
    thresholds = [*prune, *[prune[-1]] * order][:order]
    return estimate(ids_of(sentences, words), len(words), order, thresholds=thresholds)


# The mixture as one model


@settings(max_examples=60, deadline=None)
@given(st.lists(CORPORA, min_size=3, max_size=3), WEIGHTS, st.integers(1, 4), THRESHOLDS)
def test_a_mixture_lists_the_n_grams_of_all_models_with_the_weighted_mean_of_their_probabilities(
    corpora: list[Sentences], weights: list[float], order: int, prune: list[int]
) -> None:
    shares = np.array(weights) / sum(weights)
    models = [model_of(corpus, order, prune) for corpus, _ in zip(corpora, weights, strict=False)]
    mixture = Plain(interpolate(models, shares, len(WORDS)), len(WORDS))
    parts = [Plain(model, len(WORDS)) for model in models]
    assert mixture.probs.keys() == {gram for part in parts for gram in part.probs}
    for *context, word in mixture.probs:
        mean = sum(share * part.prob(tuple(context), word) for share, part in zip(shares, parts, strict=True))
        assert mixture.probs[*context, word] == pytest.approx(mean, rel=EXACT)
    for context in mixture.contexts():
        assert mixture.sum_after(context) == pytest.approx(1, abs=EXACT)
        backoffs = [part.backoffs.get(context, 1.0) for part in parts]
        assert min(backoffs) * (1 - EXACT) <= mixture.backoffs.get(context, 1.0) <= max(backoffs) * (1 + EXACT)


def test_the_total_probability_of_unlisted_words_is_the_weighted_mean_over_the_models() -> None:
    models = [model_of([list("abcd"), list("abd")], 3), model_of([list("aeb"), list("bec"), list("dd")], 3)]
    shares = np.array([0.3, 0.7])
    mixture, parts = Plain(interpolate(models, shares, len(WORDS)), len(WORDS)), [Plain(m, len(WORDS)) for m in models]
    differences = 0
    for context in mixture.contexts():
        rest = [word for word in range(len(WORDS)) if word != BOS and (*context, word) not in mixture.probs]
        means = [shares @ [part.prob(context, word) for part in parts] for word in rest]
        assert sum(mixture.prob(context, word) for word in rest) == pytest.approx(sum(means), abs=EXACT)
        differences += sum(
            abs(mixture.prob(context, word) - mean) > 1e-4 for word, mean in zip(rest, means, strict=True)
        )
    assert differences, "single words differ from the weighted mean, as the docstring of interpolate explains"


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("prune", [[0], [0, 1]])
def test_a_model_mixed_with_itself_does_not_change(order: int, prune: list[int]) -> None:
    sentences = random_sentences(5, 200)
    words = [*SPECIAL, *sorted({word for sentence in sentences for word in sentence})]
    model = model_of(sentences, order, prune, words)
    mixture = Plain(interpolate([model, model], np.array([0.2, 0.8]), len(words)), len(words))
    expected = Plain(model, len(words))
    assert mixture.probs == pytest.approx(expected.probs, rel=EXACT)
    assert mixture.backoffs == pytest.approx(expected.backoffs, rel=EXACT)


def test_the_backoff_is_finite_if_every_word_is_listed_after_the_context() -> None:
    """No word remains for the back-off, and by rounding the remaining probability may be 0 or negative."""
    zero, half = -99.0, math.log10(0.5)
    unigrams = NGrams(np.arange(4), np.array([zero, zero, half, half]), np.full(4, -0.3), np.ones(4, bool), (), False)
    bigrams = NGrams(np.array([14, 15]), np.full(2, half), np.zeros(2), np.ones(2, bool), (), False)
    first, second = interpolate([[unigrams, bigrams]] * 2, np.array([0.5, 0.5]), 4)
    assert first.backoffs == pytest.approx(np.full(4, -0.3))
    assert second.log_probs == pytest.approx(np.full(2, half))


def test_a_model_with_a_weight_close_to_1_determines_the_mixture_for_its_listed_n_grams() -> None:
    first, second = (model_of([list(text)], 3) for text in ("abcab", "edc"))
    mixture, expected = (
        Plain(model, len(WORDS))
        for model in (interpolate([first, second], np.array([1 - 1e-12, 1e-12]), len(WORDS)), first)
    )
    for gram, prob in expected.probs.items():
        assert mixture.probs[gram] == pytest.approx(prob, rel=1e-6)
        assert mixture.backoffs[gram] == pytest.approx(expected.backoffs[gram], rel=1e-6)


# The weights


def probabilities(seed: int, models: int, words: int = 400) -> Any:
    """Draw several models' probabilities of words; each model has high probabilities for different words."""
    return 10 ** -np.random.default_rng(seed).uniform(0.1, 6, (models, words))


@pytest.mark.parametrize("seed", range(5))
def test_em_finds_the_weight_found_by_a_scan_of_all_weights(seed: int) -> None:
    probs = probabilities(seed, 2) * [[1], [10.0 ** (seed - 2)]]
    scanned = np.linspace(0, 1, 10_001)[1:-1]
    likelihoods = [np.log(share * probs[0] + (1 - share) * probs[1]).sum() for share in scanned]
    weights = fit_weights(probs)
    assert weights.sum() == pytest.approx(1, abs=EXACT)
    assert weights[0] == pytest.approx(scanned[np.argmax(likelihoods)], abs=2e-4)  # resolution of the scan and of EM
    assert np.log(weights @ probs).sum() >= max(likelihoods) - 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_the_likelihood_never_decreases_from_one_em_step_to_the_next(seed: int) -> None:
    probs, weights = probabilities(seed, 4), np.full(4, 1 / 4)
    likelihood = np.log(weights @ probs).sum()
    for _ in range(200):
        shares = weights[:, None] * probs / (weights @ probs)  # the E step in plain code
        expected = shares.mean(axis=1)
        weights = em_step(weights, probs)
        assert weights == pytest.approx(expected, rel=EXACT)
        before, likelihood = likelihood, np.log(weights @ probs).sum()
        assert likelihood >= before - 1e-9  # rounding of a sum of 400 logarithms


def test_weights_are_fitted_only_on_known_words() -> None:
    """The models' probabilities differ most for unknown words, which must not determine the weights."""
    models = [model_of(corpus, 2) for corpus in ([list("abcabdeabca")] * 20, [list("ab")])]
    known = [list("abc"), list("ba")]
    dev = [DevText(ids_of(sentences), len(WORDS)) for sentences in (known, [*known, ["z"] * 30])]
    scores = np.stack([10 ** dev[1].log_probs(model) for model in models])
    assert fit_weights(scores) != pytest.approx(fit_weights(scores[:, dev[1].known]), abs=0.01)
    assert mix(models, dev[1])[0] == pytest.approx(fit_weights(scores[:, dev[1].known]), abs=EXACT)


# Perplexity of a text


@pytest.mark.parametrize("order", [1, 2, 4])
@pytest.mark.parametrize("prune", [[0], [0, 0, 1]])
def test_log_probs_equal_those_of_the_back_off_recursion(order: int, prune: list[int]) -> None:
    words = [*SPECIAL, *(f"w{number}" for number in range(20))]
    sentences = random_sentences(1, 200, words=20)
    model = model_of(sentences, order, prune, words)
    plain, dev = Plain(model, len(words)), random_sentences(2, 40, words=30)  # some words are unknown
    expected = []
    for sentence in dev:
        ids = ids_of([sentence], words).tolist()
        expected += [plain.prob(tuple(ids[max(0, i - order + 1) : i]), ids[i]) for i in range(1, len(ids))]
    text = DevText(ids_of(dev, words), len(words))
    assert 10 ** text.log_probs(model) == pytest.approx(np.array(expected), rel=EXACT)
    assert text.num_sentences == len(dev)
    assert (~text.known).sum() == sum(word not in words for sentence in dev for word in sentence)
    assert np.bincount(text.sentence).tolist() == [len(sentence) + 1 for sentence in dev]


def test_perplexity_is_the_inverse_geometric_mean_of_probabilities_and_lies_within_its_interval() -> None:
    rng = np.random.default_rng(0)
    scores, sentence = -rng.uniform(0, 4, 600), np.sort(rng.integers(0, 60, 600))
    value, ends = perplexity(scores, sentence)
    assert value == pytest.approx(math.prod(10 ** (-score / 600) for score in scores), rel=EXACT)
    assert ends is not None
    assert ends[0] < value < ends[1] < 2 * ends[0]
    assert perplexity(np.full(6, -1.0), np.array([0, 0, 0, 1, 1, 2])) == (pytest.approx(10), None), "too few sentences"
    assert perplexity(np.full(20, -2.0), np.arange(20)) == (pytest.approx(100), pytest.approx((100, 100)))


# Extra words


@settings(max_examples=60, deadline=None)
@given(CORPORA, st.integers(1, 4), THRESHOLDS, st.floats(1e-6, 0.9), st.integers(1, 4))
def test_extra_words_share_their_mass_equally_and_all_probabilities_in_each_context_sum_to_1(
    sentences: Sentences, order: int, prune: list[int], mass: float, number: int
) -> None:
    model, size = model_of(sentences, order, prune), len(WORDS) + number
    before, after = Plain(model, len(WORDS)), Plain(add_words(model, len(WORDS), number, mass), size)

    def expected(context: Gram, word: int) -> float:
        """Return the n-gram's own share plus the back-off weight times the new probability of the shorter n-gram."""
        if not context:
            return mass / number if word >= len(WORDS) else (1 - mass) * before.probs[word,]
        backoff, listed = before.backoffs.get(context, 1.0), before.probs.get((*context, word))
        own = 0 if listed is None else listed - backoff * before.prob(context[1:], word)
        return own + backoff * expected(context[1:], word)

    assert after.probs.keys() == before.probs.keys() | {(word,) for word in range(len(WORDS), size)}
    for context in after.contexts():
        assert after.sum_after(context) == pytest.approx(1, abs=EXACT)
        for word in range(size):
            if word != BOS:
                assert after.prob(context, word) == pytest.approx(expected(context, word), rel=1e-6, abs=EXACT)
    assert sum(after.probs[word,] for word in range(len(WORDS), size)) == pytest.approx(mass, rel=EXACT)


def test_mixing_models_that_have_extra_words_does_not_change_the_mass_of_these_words() -> None:
    models, words = extend([model_of([list("abc")], 2), model_of([list("dde")], 2)], WORDS, ["a", "x", "y"], 0.25)
    assert words == [*WORDS, "x", "y"]
    mixture = Plain(interpolate(models, np.array([0.4, 0.6]), len(words)), len(words))
    assert [mixture.probs[len(WORDS) + number,] for number in (0, 1)] == pytest.approx([0.125, 0.125], rel=EXACT)
    assert all(mixture.sum_after(context) == pytest.approx(1, abs=EXACT) for context in mixture.contexts())


# The command


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two texts that share words, a dev text, and a list of words, one of which is in the texts."""
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text(lines_of(random_sentences(1, 300, words=30)))
    Path("b.txt").write_text(lines_of(random_sentences(2, 60, words=60)).replace("w1 ", "x1 "))
    Path("dev.txt").write_text(lines_of(random_sentences(3, 40, words=60)) + "quite unknown\n")
    Path("names.txt").write_text("Zoë\nw3\nZoë\n\nvan Dyck\n", encoding="utf-8")
    return tmp_path


def dev_sentences() -> Sentences:
    return [line.split() for line in Path("dev.txt").read_text().splitlines()]


def printed_table(output: str) -> dict[str, list[str]]:
    """Map each model to the cells of its line."""
    lines = output.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("model "))
    rows = [re.split(r"  +", line) for line in lines[start + 1 : lines.index(next(x for x in lines if "Perpl" in x))]]
    return {name: cells for name, *cells in rows}


def plain_perplexities(model: Arpa, sentences: Sentences) -> list[float]:
    """Return the perplexities of all words and of known words; each </s> counts as a known word."""
    scores = [
        (score, word in model.vocabulary)
        for sentence in sentences
        for score, word in zip(model.sentence(sentence), [*sentence, "</s>"], strict=True)
    ]
    chosen = ([score for score, _ in scores], [score for score, known in scores if known])
    return [10 ** (-sum(part) / len(part)) for part in chosen]


def test_a_dev_text_is_measured_and_changes_no_byte_of_the_model(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ngram(["a.txt", "b.txt", "-o", "plain.arpa"]) == 0
    before = capsys.readouterr().out
    assert ngram(["a.txt", "b.txt", "-o", "lm.arpa", "--dev", "dev.txt"]) == 0
    printed = capsys.readouterr().out
    assert Path("lm.arpa").read_bytes() == Path("plain.arpa").read_bytes()
    assert printed.splitlines()[:5] == before.splitlines()[:5]
    sentences, model = dev_sentences(), Arpa(Path("lm.arpa"))
    words = sum(map(len, sentences))
    unknown = sum(word not in model.vocabulary for sentence in sentences for word in sentence)
    assert unknown >= 2
    assert f"dev.txt: 41 sentences, {words} words, {unknown} unknown ({100 * unknown / words:.2f} %)\n" in printed
    value, ends, value_of_known, _ = printed_table(printed)["lm.arpa"]
    expected = plain_perplexities(model, sentences)
    assert [float(value), float(value_of_known)] == pytest.approx(expected, rel=1e-3)  # four digits are printed
    low, high = map(float, ends.split(" to "))
    assert low < expected[0] < high


def test_a_dev_text_may_be_a_manifest_or_compressed(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = Path("dev.txt").read_text().splitlines()
    entries = [
        {"audio_filepath": "x.wav", "duration": 1.0, "text": line, "id": str(number)}
        for number, line in enumerate(lines)
    ]
    Path("dev.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    Path("dev.txt.gz").write_bytes(gzip.compress(Path("dev.txt").read_bytes()))
    tables = []
    for name in ("dev.txt", "dev.jsonl", "dev.txt.gz"):
        ngram(["a.txt", "-o", "lm.arpa", "--dev", name])
        tables.append(printed_table(capsys.readouterr().out))
    assert tables[0] == tables[1] == tables[2]


@pytest.mark.parametrize("options", [[], ["--prune", "0", "1"], ["--words", "names.txt"]], ids=" ".join)
def test_the_written_mixture_has_the_printed_weights_and_perplexities(
    texts: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    kenlm = pytest.importorskip("asr.base.language_model.kenlm")
    assert ngram(["a.txt", "b.txt", "--interpolate", "--dev", "dev.txt", "-o", "lm.arpa", *options]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^order +n-grams$", printed, re.MULTILINE), "a mixture has neither counts nor discounts"
    table = printed_table(printed)
    assert list(table) == ["a.txt", "b.txt", "mixture"]
    weights = [float(table[name][0]) for name in ("a.txt", "b.txt")]
    assert sum(weights) == pytest.approx(1, abs=1e-4)
    mixture, sentences = Arpa(Path("lm.arpa")), dev_sentences()
    value, _, value_of_known, _ = table["mixture"]
    assert [float(value), float(value_of_known)] == pytest.approx(plain_perplexities(mixture, sentences), rel=1e-3)
    assert float(value_of_known) < min(float(table[name][3]) for name in ("a.txt", "b.txt"))
    for context in mixture.contexts():
        total = sum(10 ** mixture.log_prob(context, word) for word in mixture.vocabulary - {"<s>"})
        assert total == pytest.approx(1, abs=1e-5), context  # one rounding per order, by a factor of at most 10**1e-6
    model = kenlm.NgramModel("lm.arpa")
    for sentence in [*sentences[:20], ["zoë", "w3", "dyck", "w4"]]:
        state, scores = model.start(), []
        for word in sentence:
            score, state = model.score(state, word)
            scores.append(score / kenlm.LN_10)
        assert [*scores, model.end(state) / kenlm.LN_10] == pytest.approx(mixture.sentence(sentence), abs=1e-5)


def test_thresholds_apply_to_the_counts_of_each_text(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An n-gram that occurs once in each text occurs twice in both together."""
    Path("a.txt").write_text("a b\nc\n")
    Path("b.txt").write_text("a b\nd\n")
    common = ["a.txt", "b.txt", "--order", "2", "--prune", "0", "1", "--dev", "dev.txt", "-o"]
    ngram([*common, "joined.arpa"])
    capsys.readouterr()
    ngram([*common, "mixed.arpa", "--interpolate"])
    assert ("a", "b") in Arpa(Path("joined.arpa")).log_probs
    assert ("a", "b") not in Arpa(Path("mixed.arpa")).log_probs
    assert "Too little text to estimate discounts of order 1, 2" in capsys.readouterr().out


def test_a_text_mixed_with_itself_gives_its_own_model(texts: Path) -> None:
    shutil.copy("a.txt", "copy.txt")
    ngram(["a.txt", "-o", "lm.arpa"])
    ngram(["a.txt", "copy.txt", "--interpolate", "--dev", "dev.txt", "-o", "mixed.arpa"])
    expected, mixed = Arpa(Path("lm.arpa")), Arpa(Path("mixed.arpa"))
    assert mixed.log_probs == pytest.approx(expected.log_probs, abs=2e-6)  # six decimals are written
    assert mixed.backoffs == pytest.approx(expected.backoffs, abs=2e-6)


def test_extra_words_are_normalised_and_only_new_ones_are_added(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ngram(["a.txt", "-o", "without.arpa"])
    capsys.readouterr()
    Path("dev.txt").write_text("zoë w3\nw1 w2\n", encoding="utf-8")
    given = ["--words", "names.txt", "--words-probability", "0.3", "--dev", "dev.txt"]
    assert ngram(["a.txt", "-o", "lm.arpa", *given]) == 0
    printed = capsys.readouterr().out
    assert "names.txt: 4 words, 3 of them not in the texts; they share 0.3 of the unigrams' probability\n" in printed
    assert "dev.txt: 2 sentences, 4 words, 0 unknown (0.00 %), 1 known by --words alone (25.00 %)\n" in printed
    model, without = Arpa(Path("lm.arpa")), Arpa(Path("without.arpa"))
    assert model.log_probs["<s>",] == -99, "<s> follows no word"
    assert model.vocabulary - without.vocabulary == {"zoë", "van", "dyck"}
    for word in ("zoë", "van", "dyck"):
        assert model.log_probs[word,] == pytest.approx(math.log10(0.1), abs=1e-6)
    assert model.log_probs["w3",] == pytest.approx(without.log_probs["w3",] + math.log10(0.7), abs=2e-6)
    assert model.backoffs == pytest.approx(without.backoffs | {(word,): 0 for word in ("zoë", "van", "dyck")})


def test_with_a_spelling_model_only_the_mixture_covers_the_words_of_all_texts(
    texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a spelling model, <unk> of a text's model stands for all words that the text does not contain."""
    options = ["--words", "names.txt", "--spelling", "spelling.arpa", "--dev", "dev.txt", "--interpolate"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # numpy's warning about logarithms of 0
        assert ngram(["a.txt", "b.txt", "-o", "lm.arpa", *options]) == 0
    table = printed_table(capsys.readouterr().out)
    assert table["a.txt"][1:] == ["-"] * 4, "the perplexity is infinite"
    mixture = Arpa(Path("lm.arpa"))
    known = plain_perplexities(mixture, dev_sentences())[1]
    assert float(table["mixture"][2]) == pytest.approx(known, rel=1e-3)
    assert {"zoë", "w1", "x1"} <= mixture.vocabulary
    for context in mixture.contexts():
        total = sum(10 ** mixture.log_prob(context, word) for word in mixture.vocabulary - {"<s>"})
        assert total == pytest.approx(1, abs=1e-5), context
    assert Arpa(Path("spelling.arpa")).vocabulary <= {*SPECIAL, *"wx0123456789"}, (
        "the spelling model has no letter of the names"
    )


def test_extra_words_that_the_text_contains_change_nothing(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("names.txt").write_text("w1\nW2\n")
    ngram(["a.txt", "-o", "without.arpa"])
    ngram(["a.txt", "-o", "lm.arpa", "--words", "names.txt"])
    assert Path("lm.arpa").read_bytes() == Path("without.arpa").read_bytes()
    assert "names.txt: 2 words, 0 of them not in the texts\n" in capsys.readouterr().out


@pytest.mark.parametrize("link", [False, True])
def test_a_dev_text_that_is_also_a_training_text_is_named_in_one_line(
    texts: Path, capsys: pytest.CaptureFixture[str], link: bool
) -> None:
    if link:
        Path("link.txt").symlink_to("a.txt")
    ngram(["a.txt", "b.txt", "-o", "lm.arpa", "--dev", "link.txt" if link else "a.txt"])
    check_refusal(capsys.readouterr().err, f"--dev ... {'link' if link else 'a'}.txt")


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.txt", "b.txt", "--interpolate"], "--interpolate ... --dev; got none"),
        (
            ["a.txt", "--interpolate", "--dev", "dev.txt"],
            "--interpolate; got a.txt",
        ),
        (
            ["a.txt", "empty.txt", "--interpolate", "--dev", "dev.txt"],
            "of a mixture ... empty.txt",
        ),
        (["a.txt", "--dev", "empty.txt"], "--dev ... empty.txt"),
        (["a.txt", "--words", "empty.txt"], "--words ... empty.txt"),
        (["a.txt", "--dev", "none.txt"], "none.txt ... text; got No such file"),
        (["a.txt", "--words", "none.txt"], "none.txt ... text; got No such file"),
        (["a.txt", "--words-probability", "0.1"], "--words-probability ... --words; got 0.1 without"),
        (["a.txt", "--words", "names.txt", "--words-probability", "0"], "--words-probability; got 0"),
        (["a.txt", "--words", "names.txt", "--words-probability", "1"], "--words-probability; got 1"),
        (
            ["a.txt", "--words", "names.txt", "--tokens", "model"],
            "--words; got --t",
        ),
        (
            ["a.txt", "--dev", "dev.txt", "-o", "dev.txt"],
            "--output ... dev.txt",
        ),
        (["a.txt", "--words", "names.txt", "-o", "names.txt"], "--output ... names.txt"),
        (
            ["a.txt", "--dev", "special.txt", "--normalizer", "as_written"],
            "special.txt:1 ... text",
        ),
    ],
)
def test_invalid_options_are_refused_in_one_line(texts: Path, arguments: list[str], message: str) -> None:
    Path("empty.txt").write_text("...\n")
    Path("special.txt").write_text("<s> two </s>\n")
    with refused(InputError, message):
        ngram([*(["-o", "lm.arpa"] if "-o" not in arguments else []), *arguments])
    assert not Path("lm.arpa").exists()
