"""Hotwords: bonuses after each character and at the end, and phrases that the tokenizer cannot spell."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asr.base.text.normalize import basic
from asr.components.decode.beam import Beam
from asr.components.decode.fusion.hotwords import Matcher, Matches, Phrases
from asr.errors import InputError
from tests.fusion import (
    NUMBERS,
    UNREADABLE,
    Fusion,
    Pieces,
    Trigrams,
    assert_unusable,
    beam,
    search_settings,
    write_lines,
)
from tests.identity import IDENTITY, decoded
from tests.refusals import refused

LETTERS = ["", " ", *"acdeknoqrtwyz"]
NEW_YORK = ["new", "new york", "york city", "a new york"]


def gains(phrases: list[str], text: str, score: float = 1.0) -> tuple[list[float], float]:
    """Return the running sum of the gains after each character of the text, and the sum at its end."""
    fusion = beam(LETTERS).fusion
    fusion = fusion.biased(fusion.compile_hotwords(phrases, score))
    context, given = fusion.start(), [0.0]
    for character in text:
        extended = fusion.extend(context, LETTERS.index(character))
        assert extended is not None
        context = extended[0]
        given.append(given[-1] + extended[1])
    gain = fusion.finish(context)
    assert gain is not None
    return given[1:], given[-1] + gain


def test_a_phrase_gets_its_bonus_character_by_character() -> None:
    given, final_score = gains(["york"], "york", score=2.0)
    assert given == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert final_score == 2.0


def test_the_bonus_of_a_completed_phrase_is_given_only_once() -> None:
    given, final_score = gains(["new", "new york"], "new york")
    assert given == pytest.approx([1 / 3, 2 / 3, 1, 1, 1.25, 1.5, 1.75, 2])
    assert final_score == 2.0


@pytest.mark.parametrize(
    ("text", "given", "final_score"),
    [
        ("yor", [0.25, 0.5, 0.75], 0),  # the text ends before the phrase is complete
        ("yord", [0.25, 0.5, 0.75, 0], 0),
        ("yorke", [0.25, 0.5, 0.75, 1, 0], 0),  # the phrase does not end at the end of a word
        ("ayork", [0] * 5, 0),  # the phrase does not begin at the beginning of a word
        ("york e", [0.25, 0.5, 0.75, 1, 1, 1], 1),
        ("a york", [0, 0, 0.25, 0.5, 0.75, 1], 1),
    ],
)
def test_only_a_phrase_of_whole_words_keeps_its_bonus(text: str, given: list[float], final_score: float) -> None:
    actual = gains(["york"], text)
    assert actual[0] == pytest.approx(given)
    assert actual[1] == pytest.approx(final_score)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("new", 1),
        ("new yor", 1),
        ("new york", 2),
        ("york", 0),
        ("york city", 2),
        ("new york city", 3),
        ("new  york", 2),  # several spaces count as one space
        ("a new york city", 4),
        ("new new york york city", 5),
        ("a new", 1),
    ],
)
def test_each_word_of_overlapping_phrases_counts_once(text: str, words: int) -> None:
    letters = text.replace("city", "cdty")
    assert gains([phrase.replace("city", "cdty") for phrase in NEW_YORK], letters, score=3.0)[1] == pytest.approx(
        3.0 * words
    )


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.lists(st.text("ac", min_size=1, max_size=3), min_size=1, max_size=4).map(" ".join), max_size=6),
    st.text("ac  ", max_size=24),
    st.floats(0, 9),
)
def test_the_total_gain_counts_the_words_covered_by_whole_phrases(phrases: list[str], text: str, score: float) -> None:
    plain = Fusion(LETTERS, hotwords=phrases, numbers=dict.fromkeys(NUMBERS, 0.0) | {"hotword_score": score})
    given, final_score = gains(phrases, text, score)
    assert final_score == pytest.approx(plain.score([LETTERS.index(character) for character in text]), abs=1e-9)
    assert all(gain >= -1e-9 for gain in given), "the start of a phrase never lowers the score"
    longest = max((len(phrase.split()) for phrase in phrases), default=0)
    assert all(now - before <= longest * score + 1e-9 for before, now in pairwise([0.0, *given]))


def test_a_run_of_spaces_neither_ends_a_match_nor_starts_one() -> None:
    matcher = Matcher([Phrases(["a c"], 1.0)])
    assert matcher.end_word(Matches()) == (Matches(), 0.0)


def test_tokens_with_several_letters_or_words_match_like_single_letters() -> None:
    pieces = ["", " new", " y", "ork ci", "ty", " new york", "a n"]
    plain = Fusion(
        pieces, hotwords=["new york", "york city", "a"], numbers=dict.fromkeys(NUMBERS, 0.0) | {"hotword_score": 1.0}
    )
    fusion = beam(pieces).fusion
    fusion = fusion.biased(fusion.compile_hotwords(plain.hotwords, 1.0))
    draw = random.Random(0)
    for tokens in [[1, 2, 3, 4], [5, 2, 3, 4], [5, 5], *([draw.randrange(1, 7) for _ in range(5)] for _ in range(200))]:
        context, given = fusion.start(), 0.0
        for token in tokens:
            context, gain = fusion.extend(context, token) or pytest.fail("no lexicon forbids it")
            given += gain
        assert given + (fusion.finish(context) or 0.0) == pytest.approx(plain.score(tokens), abs=1e-9)


def test_hotwords_are_permitted_even_if_the_lexicon_lacks_their_words(tmp_path: Path) -> None:
    lexicon = write_lines(tmp_path / "lexicon.txt", ["dark", "teak"])
    hotwords = write_lines(tmp_path / "hotwords.txt", ["new york", "zat"])
    log_probs = torch.full((8, len(LETTERS)), -9.0)
    log_probs[range(8), [LETTERS.index(character) for character in "new york"]] = 0.0

    def text(**settings: str) -> str:
        search = beam(LETTERS, lexicon=lexicon, beam_size=500, **settings)
        [readings] = decoded(search, log_probs[None], torch.tensor([8]))
        return "".join(LETTERS[token] for token in readings[0].tokens)

    assert text() != "new york"
    assert text(hotwords=hotwords) == "new york"


def test_the_score_of_unknown_words_is_not_added_to_a_hotword(tmp_path: Path) -> None:
    pytest.importorskip("kenlm")
    model = Trigrams([], random.Random(0))
    hotwords = write_lines(tmp_path / "hotwords.txt", ["a"])
    settings = {
        "lm": model.write(tmp_path / "lm.arpa"),
        "lm_weight": 1.0,
        "word_insertion_bonus": 0.0,
        "unknown_score": -7.0,
        "hotword_score": 0.0,
    }
    log_probs = torch.full((1, len(LETTERS)), -99.0)
    log_probs[0, LETTERS.index("a")] = 0.0
    scores = []
    for path in (None, hotwords):
        [hypotheses] = decoded(beam(LETTERS, **settings, hotwords=path), log_probs[None], torch.tensor([1]))
        scores += [hypothesis.score for hypothesis in hypotheses if hypothesis.tokens]
    log_prob = model.sentence(["a"])  # the log-probability of <unk>
    assert scores == pytest.approx([log_prob - 7.0, log_prob], abs=1e-5)


def test_phrases_are_normalised_and_impossible_ones_are_named_with_the_reason(tmp_path: Path) -> None:
    hotwords = write_lines(tmp_path / "hotwords.txt", ["  new   york ", "", "york\tkey", "Zoë", "new york", "42"])
    search = beam(LETTERS, hotwords=hotwords)
    assert search.biasing.phrases == ["new york", "york key"]
    assert search.biasing.impossible == {"Zoë": "'Z' cannot be spelled", "42": "'4' cannot be spelled"}


def test_a_phrase_that_is_empty_after_normalisation_is_impossible(tmp_path: Path) -> None:
    settings = search_settings("beam", hotwords=write_lines(tmp_path / "names.txt", ["!!!", "New York!"]))
    search = Beam(IDENTITY, Pieces(LETTERS), basic, **settings)  # type: ignore[arg-type]
    assert search.biasing.phrases == ["new york"]
    assert search.biasing.impossible == {"!!!": "nothing is left of it after normalisation"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [*UNREADABLE, (b"", "phrases ... none"), (b" \n\n\t\n", "phrases ... none")],
)
def test_an_unusable_file_is_reported_in_one_line(tmp_path: Path, content: bytes | None, reason: str) -> None:
    assert_unusable(tmp_path / "hotwords.txt", content, lambda path: beam(LETTERS, hotwords=path), "hotwords", reason)


def test_a_folder_in_place_of_a_hotwords_file_is_refused(tmp_path: Path) -> None:
    with refused(InputError, "hotwords ... Is a directory"):
        beam(LETTERS, hotwords=str(tmp_path))


def test_matching_a_long_phrase_takes_time_proportional_to_its_length() -> None:
    """Counting the words of this phrase again at each character would take an hour."""
    text = "ab c " * 50_000 + "d"
    phrases = Phrases([text], 1.0)
    assert phrases.most == 100_001
    node = phrases.root
    for end, character in enumerate(text[:200], start=1):
        node = node.after[character]
        assert node.words == len(text[:end].split())


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("new york\n" + "new " * 100_000, ":2 ... line"),
        (
            "a phrase of names\n" * 60_000,
            ":55556 ... hotwords",
        ),
    ],
    ids=["phrase", "file"],
)
def test_the_error_for_a_file_beyond_the_memory_limit_names_the_limit_and_the_line(
    tmp_path: Path, content: str, reason: str
) -> None:
    path = tmp_path / "hotwords.txt"
    path.write_text(content)
    with refused(InputError, f"{path} ... {reason}") as error:
        beam(LETTERS, hotwords=str(path))
    assert len(str(error.value)) < 300
