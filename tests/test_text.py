"""Normalisers: examples, and properties that hold for any text; formatting of numbers."""

# ruff: noqa: RUF001  the examples contain letters and quotes that look alike

import math
import sys
import unicodedata
from importlib.util import find_spec

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asr.base.text import normalize, numbers
from asr.base.text.normalize import as_written, basic, basic_turkic, get_normalizer, scored_by
from asr.base.text.scripts import without_spaces
from asr.errors import InputError
from tests.refusals import refused

needs_whisper_normalizer = pytest.mark.skipif(
    find_spec("whisper_normalizer") is None, reason="whisper_normalizer is not installed: pip install '.[leaderboard]'"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don’t — “STOP”, 3 o'clock!", "don't stop 3 o'clock"),
        ("  MISTER   QUILTER\tIS THE\nAPOSTLE ", "mister quilter is the apostle"),
        ("'tis the dogs' 'rock 'n' roll'", "tis the dogs rock n roll"),
        ("a''b '''c' ' d", "a b c d"),
        ("well-known state_of_the_art 50%", "well known state of the art 50"),
        ("ﬁne ＦＵＬＬ Ｗｉｄｔｈ x²", "fine full width x2"),
        ("20 ℃ 5 ㎒", "20 c 5 mhz"),  # capitals appear only after compatibility decomposition
        ("Äpfel ÉCOLE straße", "äpfel école straße"),
        ("e\u0301cole", "école"),
        ("T\u0308 H\u0331", "ẗ ẖ"),  # these letters have composed forms only in lower case
        ("हिन्दी में", "हिन्दी में"),
        ("क्षि'कि", "क्षि'कि"),  # the mark before the apostrophe is part of the word
        ("ПРИВЕТ, об'єкт", "привет об'єкт"),
        ("日本語。テスト", "日本語 テスト"),
        ("", ""),
        (" \u00a0\u2003 … ", ""),
    ],
)
def test_the_basic_normalizer_keeps_words_and_removes_case_and_punctuation(text: str, expected: str) -> None:
    assert basic(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # invisible characters: a joiner that changes letters is part of the word
        ("ශ්\u200dරී ලංකාව", "ශ්\u200dරී ලංකාව"),
        ("می\u200cخواهم خانه\u200c\u200cها", "می\u200cخواهم خانه\u200cها"),
        ("ಬ್ಯಾಂಕ್\u200cನಲ್ಲಿ ಬ್ಯಾಂಕ್\u200c \u200cکتاب\u200c", "ಬ್ಯಾಂಕ್\u200cನಲ್ಲಿ ಬ್ಯಾಂಕ್ کتاب"),
        ("അവന്\u200d র\u200d্যাব", "അവന്\u200d র\u200d্যাব"),
        ("ᠠ\u180eᠠ", "ᠠ\u180eᠠ"),
        ("Auf\u200clage Donau\u00addampf \u200fשלום\u200e a\u2060b \ufeffx", "auflage donaudampf שלום ab x"),
        ("cafe\u00ad\u0301 葛\U000e0100", "café 葛"),
        ("ភាសា\u200bខ្មែរ 1\u06dd2", "ភាសា ខ្មែរ 1 2"),
        ("👨\u200d👩\u200d👧 ❤\ufe0f 👍🏽 🏴\U000e0067\U000e007f 🇩🇪 🈁 ℹ\ufe0f ™\ufe0f", ""),
        # signs typed for an apostrophe, and marks without a letter
        ("don´t don‘t don`t donʼt don＇t don‛t п′ять σ΄αγαπώ", "don't don't don't don't don't don't п'ять σ'αγαπώ"),
        ("‘quoted’ `code` 5′10 ʼaʼ ¨ a¨ \u0301b", "quoted code 5 10 ʼaʼ a b"),
        # signs inside words
        ("intel·ligent paraŀlel a‧b ·x· 3·5 卡尔·马克思", "intel·ligent paral·lel a‧b x 3 5 卡尔 马克思"),
        ('צה״ל צה"ל ג׳ירפה ג\'ירפה סנדוויץ׳ "שלום" רח\' ׳', "צה״ל צה״ל ג׳ירפה ג׳ירפה סנדוויץ׳ שלום רח"),
        ("ինչո՞ւ e.g. 3.5 12:30 EU:n", "ինչու e g 3 5 12 30 eu n"),
        # letters whose lower case is two
        ("İstanbul’da I\u0307 i\u0307", "istanbul'da i i"),
        # letters in use, and shapes
        ("น้ำ ຄຳ ŉ և ໜ ㅋㅋ 1ª nº pêⁿ", "น้ำ ຄຳ ŉ և ໜ ㅋㅋ 1ª nº pêⁿ"),
        ("½ 2½ H₂O Foo™ ﷲ ﻻ ｶﾞ か゛ ﾡ ﬅ ẛ Ⅷ ⼀ 𝐱 ĳ", "1 2 2 1 2 h2o foo الله لا ガ が ㄱ st ṡ viii 一 x ij"),
        ("مﹷد", "مـَد"),
    ],
)
def test_the_basic_normalizer_keeps_the_spelling_of_many_languages(text: str, expected: str) -> None:
    assert basic(text) == expected
    assert basic(unicodedata.normalize("NFD", text)) == expected


def test_the_turkic_normalizer_has_a_dotless_i() -> None:
    assert basic_turkic("ISPARTA’ya İzmir’den I\u0307stanbul DİYARBAKIR") == "ısparta'ya izmir'den istanbul diyarbakır"


# Without digits, and without scripts whose letters Unicode separates: `basic` treats these otherwise.
SPLIT = "aEéкकनि\u094d\u200d\u200c\u00ad\u0301ש״'’·‧ -!?"


@given(st.text(st.sampled_from(SPLIT), max_size=12))
@example("intel·ligent צה״ל ג׳ירפה")
@example("ශ්\u200dරී a'\u0301b soft\u00adhyphen")
def test_words_are_split_where_unicode_splits_them(text: str) -> None:
    regex = pytest.importorskip("regex", reason="needs the package regex, which has Unicode's word boundaries")
    words = [basic(segment) for segment in regex.split(r"(?wV1)\b", text)]
    assert [word for word in words if word] == basic(text).split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今天 天气 OK", True),
        ("ภาษาไทย", True),
        ("カタカナ", True),
        ("한국어 문장", False),
        ("a 字", False),
        ("", False),
    ],
)
def test_scripts_without_spaces_are_recognised_by_most_letters(text: str, expected: bool) -> None:
    assert without_spaces(text) is expected


def test_the_as_written_normalizer_keeps_case_and_punctuation() -> None:
    assert as_written("  Don’t —\t“STOP”,\n3  o'clock! ") == "Don’t — “STOP”, 3 o'clock!"


@pytest.mark.parametrize("name", ["as_written", "basic"])
def test_composed_and_decomposed_letters_are_equal(name: str) -> None:
    text = "Äpfel, Öl und süße Brötchen"
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert get_normalizer(name)(decomposed) == get_normalizer(name)(composed)
    assert get_normalizer(name)(composed) == {"as_written": text, "basic": "äpfel öl und süße brötchen"}[name]


@needs_whisper_normalizer
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Quilter paid twenty-five dollars, um, the colour's grey", "mister quilter paid $25 the color is gray"),
        ("MISTER QUILTER PAID TWENTY FIVE DOLLARS THE COLOR IS GRAY", "mister quilter paid $25 the color is gray"),
        ("he's gone [laughter] (they can't)", "he has gone"),
        (" hmm ", ""),
        ("", ""),
    ],
)
def test_whisper_english_normalises_like_the_leaderboard(text: str, expected: str) -> None:
    assert get_normalizer("whisper_english")(text) == expected


def test_if_the_package_of_a_normalizer_is_absent_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    normalize._whisper_english.cache_clear()
    monkeypatch.setitem(sys.modules, "whisper_normalizer.english", None)  # simulates that it is not installed
    with refused(InputError, "have the package ... '.[leaderboard]'"):
        get_normalizer("whisper_english")


def test_the_basic_normalizer_scores_texts_as_written_and_other_normalizers_score_their_own_texts() -> None:
    assert scored_by(as_written) is basic
    assert scored_by(basic) is basic
    assert scored_by(normalize.whisper_english) is normalize.whisper_english


@pytest.mark.parametrize("name", ["as_written", "basic", "basic_turkic"])
@given(text=st.text() | st.text(st.sampled_from("aI\u0307\u0301सि्ש\u200d\u200c\u180e'’\"´`ʼ·״׳ᠠमΣ \u00ad\ufe0f")))
@example(text="T\u0308")
@example(text="\u0130\u0316")  # İ in lower case is i and a mark, which must be reordered with the other mark
@example(text="'\u0301a'\u0301")
def test_normalising_twice_equals_normalising_once(name: str, text: str) -> None:
    once = get_normalizer(name)(text)
    assert get_normalizer(name)(once) == once
    assert once == " ".join(once.split())


def test_normalisation_is_idempotent_for_every_capital_with_every_mark() -> None:
    capitals = [chr(code) for code in range(0x250) if chr(code).lower() != chr(code)]
    marks = [chr(code) for code in range(0x300, 0x370)]
    assert [c + m for c in capitals for m in marks if basic(basic(c + m)) != basic(c + m)] == []


@given(st.text())
@example("a'' '' 'b'")
@example("'\u0301")
@example("a_b")
def test_the_basic_normalizer_yields_only_letters_marks_digits_single_spaces_and_signs_in_words(text: str) -> None:
    for word in filter(None, basic(text).split(" ")):
        assert unicodedata.category(word[0])[0] in "LN"
        for position, character in enumerate(word):
            if unicodedata.category(character)[0] not in "LMN":
                assert character in "'·‧՟״׳\u200c\u200d\u180e"
                assert position < len(word) - 1 or character in "׳\u200d"
                assert unicodedata.category(word[position - 1])[0] in "LMN" or character == "'"


@given(st.text())
def test_the_basic_normalizer_yields_lower_case(text: str) -> None:
    assert basic(text) == basic(text).lower()


def test_an_unknown_name_is_an_error_that_lists_the_names() -> None:
    with refused(InputError, "normalizer", got="whisper"):
        get_normalizer("whisper")


def test_numbers_are_formatted_for_readers() -> None:
    assert [numbers.number(value) for value in (None, math.nan, 0, 1234567, 0.123456, 12345.6)] == [
        *("-", "-", "0", "1,234,567", "0.1235", "12,346")
    ]
    assert [numbers.percent(value) for value in (None, math.inf, 0.0593, 1.0)] == ["-", "-", "5.9 %", "100.0 %"]
    assert [numbers.percent(0.05934, decimals) for decimals in (0, 2)] == ["6 %", "5.93 %"]
    assert [numbers.rate(value) for value in (None, 0.05934, 1.2)] == ["-", "5.93", "120.00"]
    assert [numbers.points(value) for value in (None, 0.0, -0.0123, 0.5)] == ["-", "+0.00", "-1.23", "+50.00"]
    assert [numbers.interval(ends) for ends in (None, (0.1, 0.25))] == ["-", "10.00 to 25.00"]
    assert numbers.interval((-0.1, 0.25), numbers.points) == "-10.00 to +25.00"
    assert [numbers.probability(value) for value in (None, 0.0009, 0.001, 1.0)] == ["-", "< 0.001", "0.001", "1.000"]
    assert [numbers.probability(value, "= ") for value in (0.0009, 0.04)] == ["< 0.001", "= 0.040"]
    assert [numbers.counted(count, "word") for count in (0, 1, 1234)] == ["0 words", "1 word", "1,234 words"]
