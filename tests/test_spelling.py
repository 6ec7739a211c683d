"""The spelling model of words that a language model does not know: its probabilities and its estimation."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest
import torch

from asr.base.language_model.kenlm import NgramModel
from asr.base.language_model.spelling import MAX_COUNT, SpellingModel
from asr.errors import InputError
from asr.interfaces import Encoded
from asr.ngram import main as ngram
from tests.fusion import Trigrams, beam
from tests.refusals import refused
from tests.test_beam import needs_kenlm

TEXT = ["the cat sat", "the dog sat on the cat", "a cat and a dog sat", "the act", "a tag", "so sad a cog"]


def made(folder: Path, text: Sequence[str] = TEXT, *options: str) -> tuple[Path, Path]:
    """Build the word model and the spelling model of a text."""
    words, spelling = folder / "words.arpa", folder / "spelling.arpa"
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in text))
    assert ngram([str(folder / "text.txt"), "-o", str(words), "--spelling", str(spelling), *options]) == 0
    return words, spelling


def entries(arpa: Path, order: int) -> dict[str, float]:
    """Map the n-grams of an order to their probabilities."""
    section = arpa.read_text().partition(f"\\{order}-grams:\n")[2].partition("\n\n")[0]
    rows = [line.split("\t") for line in section.splitlines()]
    return {row[1]: 10 ** float(row[0]) for row in rows}


def log_prob(model: SpellingModel, word: str) -> float:
    spelled, state = model.extend(model.start(), word)
    return spelled + model.end(state)


@needs_kenlm
def test_the_probabilities_of_all_strings_sum_to_one(tmp_path: Path) -> None:
    """The sum is over strings of at most eight characters, and over prefixes that represent all longer strings."""
    _, path = made(tmp_path, ["ab abb ba", "b aab bb", "bab a"])
    model = SpellingModel(str(path))
    alphabet = ["a", "b", "?"]  # the text has no question mark, so "?" is <unk>
    short = sum(math.exp(log_prob(model, "".join(word))) for n in range(9) for word in product(alphabet, repeat=n))
    long = sum(math.exp(model.extend(model.start(), "".join(word))[0]) for word in product(alphabet, repeat=9))
    assert short + long == pytest.approx(1.0, abs=1e-5)  # KenLM computes in float32
    assert short > 0.9


@needs_kenlm
def test_characters_may_be_scored_one_by_one_or_together(tmp_path: Path) -> None:
    model = SpellingModel(str(made(tmp_path)[1]))
    whole, _ = model.extend(model.start(), "catnap")
    first, state = model.extend(model.start(), "ca")
    second, state = model.extend(state, "t")
    third, _ = model.extend(state, "nap")
    assert first + second + third == pytest.approx(whole, abs=1e-6)


def test_unknown_words_get_all_mass_that_discounts_remove_from_the_unigrams(tmp_path: Path) -> None:
    """A unigram's count is the number of different words before it."""
    words, _ = made(tmp_path, TEXT, "--order", "2")
    pairs = {pair for line in TEXT for pair in zip(["<s>", *line.split()], [*line.split(), "</s>"], strict=True)}
    counts = Counter(second for _, second in pairs)
    probabilities = entries(words, 1)
    discounts = (0.5, 1.0, 1.5)  # fixed values, because the text is too short to estimate discounts
    total = sum(counts.values())
    for word, count in counts.items():
        assert probabilities[word] == pytest.approx((count - discounts[min(count, 3) - 1]) / total, rel=1e-4)
    taken = sum(discounts[min(count, 3) - 1] for count in counts.values())
    assert probabilities["<unk>"] == pytest.approx(taken / total, rel=1e-4)
    assert sum(probabilities.values()) - probabilities["<s>"] == pytest.approx(1.0, abs=1e-5)


@needs_kenlm
@pytest.mark.parametrize("order", [2, 3])
def test_after_every_history_the_probabilities_of_all_known_words_and_of_the_unknown_word_sum_to_one(
    tmp_path: Path, order: int
) -> None:
    words, _ = made(tmp_path, TEXT, "--order", str(order))
    model = NgramModel(words)
    for history in product([*sorted(model.words), "never"], repeat=order - 1):
        state = model.start()
        for word in history:
            _, state = model.score(state, word)
        total = sum(math.exp(model.score(state, word)[0]) for word in [*model.words, "never"])
        assert total + math.exp(model.end(state)) == pytest.approx(1.0, abs=1e-5)


def test_without_spelling_the_model_does_not_change(tmp_path: Path) -> None:
    made(tmp_path)
    assert ngram([str(tmp_path / "text.txt"), "-o", str(tmp_path / "plain.arpa")]) == 0
    unigrams = entries(tmp_path / "plain.arpa", 1)
    assert unigrams["<unk>"] == min(unigrams[word] for word in unigrams if word != "<s>")
    assert entries(tmp_path / "words.arpa", 1)["<unk>"] > 3 * unigrams["<unk>"]


@needs_kenlm
def test_unknown_words_are_spelled_like_the_rare_words_of_the_text(tmp_path: Path) -> None:
    frequent = ["zzz"] * (MAX_COUNT + 1)
    _, path = made(tmp_path, [" ".join(["abab", *frequent]), " ".join(["abba", *frequent])])
    model = SpellingModel(str(path))
    assert "z" not in entries(path, 1)
    assert log_prob(model, "abab") > log_prob(model, "baab") > log_prob(model, "zzz")


@needs_kenlm
def test_if_no_word_is_rare_the_spelling_model_is_estimated_from_all_words(tmp_path: Path) -> None:
    _, path = made(tmp_path, ["ab ba"] * (MAX_COUNT + 1))
    assert {"a", "b"} < entries(path, 1).keys()


@needs_kenlm
def test_the_score_of_each_text_equals_its_probability_under_known_trigrams(tmp_path: Path) -> None:
    """All frames have equal scores for "a", "b" and space, so only the language decides."""
    draw = random.Random(1)
    language, spelling = Trigrams(["a", "ab"], draw), Trigrams("ab", draw)
    pieces = ["", " ", "a", "b"]
    search = beam(
        pieces,
        lm=language.write(tmp_path / "words.arpa"),
        spelling=spelling.write(tmp_path / "spelling.arpa"),
        lm_weight=1.0,
        word_insertion_bonus=0.0,
        beam_size=10_000,
        beam_threshold=math.inf,
        tokens_per_frame=4,
        token_threshold=-math.inf,
    )

    def truth(words: Sequence[str]) -> float:
        return language.sentence(words) + sum(spelling.sentence(word) for word in words if word not in ("a", "ab"))

    log_probs = torch.zeros(1, 6, len(pieces))
    [hypotheses] = search.search(search.evidence(Encoded(log_probs, torch.tensor([6]), {})))
    texts = {"".join(pieces[token] for token in hypothesis.tokens): hypothesis.score for hypothesis in hypotheses}
    assert len(texts) > 100
    for text, score in texts.items():
        assert score == pytest.approx(truth(text.split()), abs=1e-4)


@needs_kenlm
def test_the_perplexity_of_a_dev_text_includes_the_spelling_of_unknown_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dev = ["the rat sat", "a cot", "the dog", "so sat the act", "a tag and a goat"]
    (tmp_path / "dev.txt").write_text("".join(f"{line}\n" for line in dev))
    words, spelling = made(tmp_path, TEXT, "--dev", str(tmp_path / "dev.txt"))
    output = capsys.readouterr().out
    model, letters = NgramModel(words), SpellingModel(str(spelling))
    total, count = 0.0, 0
    for line in dev:
        state = model.start()
        for word in line.split():
            probability, state = model.score(state, word)
            total += probability + (0.0 if word in model.words else log_prob(letters, word))
        total += model.end(state)
        count += len(line.split()) + 1
    [row] = [line.split() for line in output.splitlines() if line.startswith("words.arpa ") and "to" in line]
    assert float(row[1]) == pytest.approx(math.exp(-total / count), rel=0.01)
    assert "an unknown word has the probability of <unk> times that of its spelling." in output


@needs_kenlm
def test_an_invalid_spelling_model_is_reported_in_one_line(tmp_path: Path) -> None:
    words, spelling = made(tmp_path)
    with refused(InputError, "words.arpa ... single characters"):
        beam(["", " ", "a"], lm=str(words), spelling=str(words))
    with refused(InputError, "--spelling ... decode.fusion.spelling; got none"):
        beam(["", " ", "a"], spelling=str(spelling))


@needs_kenlm
@pytest.mark.parametrize("unit", ["word", "token"])
def test_a_spelling_model_given_as_the_language_model_is_refused_by_name(tmp_path: Path, unit: str) -> None:
    """The entries of a spelling model are letters, which could also be words or tokens."""
    _, spelling = made(tmp_path, ["pack my box with five dozen liquor jugs"])
    message = "spelling.arpa ... --spelling"
    with refused(InputError, message):
        beam(["", " ", *"abcdefghijklmnopqrstuvwxyz"], lm=str(spelling), lm_unit=unit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--spelling", "TEXT"], "--spelling ... not replace"),
        (["--spelling", "OUTPUT"], "--spelling ... --output"),
        (
            ["--spelling", "spelling.arpa", "--tokens", "model"],
            "--spelling ... because tokens",
        ),
    ],
)
def test_incompatible_options_are_refused_before_any_work_begins(
    tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "text.txt").write_text("a b\n")
    paths = {"TEXT": str(tmp_path / "text.txt"), "OUTPUT": str(tmp_path / "words.arpa")}
    given = [paths.get(option, option) for option in options]
    with refused(InputError, message):
        ngram([paths["TEXT"], "-o", paths["OUTPUT"], *given])
    assert (tmp_path / "text.txt").read_text() == "a b\n"
    assert not (tmp_path / "words.arpa").exists()
