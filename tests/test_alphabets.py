"""The letters of languages and scripts, and the tool that takes them from CLDR."""

# ruff: noqa: RUF001  letters that look alike are tested here

import gzip
import io
import json
import tarfile
import tomllib
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from asr.base.text.alphabets import FILE, find_alphabet, languages, letters_of, scripts, units
from asr.errors import InputError
from tests.conftest import ROOT
from tests.refusals import refused
from tools import alphabets


@pytest.mark.parametrize(
    ("name", "own", "foreign"),
    [
        ("de", "azßẞäÖéÉ", "яαłе"),  # the last letter is Cyrillic
        ("en", "aZéñ", "ßаи"),
        ("tr", "ıIiİşŞ", "жə"),
        ("ru", "ёЁъ", "eїі"),
        ("sr", "љЏ", "lđ"),
        ("sr-Latn", "đŽ", "ђ"),
        ("el", "άςΣ", "aа"),
        ("ja", "日あアー々", "aя한"),
        ("latin", "aßſøɣＡªﬁŉ", "яαа한"),
        ("cyrillic", "яЁґә", "aα"),
        ("greek", "άΏµ", "aя"),
        ("han", "日々龍", "あa"),
        ("katakana", "アｱー", "あ日"),
        ("hangul", "한ㄱ", "日"),
    ],
)
def test_a_letter_belongs_to_its_alphabets_in_both_cases(name: str, own: str, foreign: str) -> None:
    alphabet = find_alphabet(name)
    assert [letter for letter in own if not alphabet.has(letter)] == []
    assert [letter for letter in foreign if alphabet.has(letter)] == []


def test_an_apostrophe_that_is_a_letter_belongs_to_all_scripts_and_to_the_languages_that_use_it() -> None:
    assert all(find_alphabet(name).has("\N{MODIFIER LETTER APOSTROPHE}") for name in ["latin", "greek", "uk"])
    assert not find_alphabet("de").has("\N{MODIFIER LETTER APOSTROPHE}")


def test_letters_are_composed_with_their_marks_and_nothing_else_is_a_letter() -> None:
    assert letters_of("e\N{COMBINING CARON}, 7 «A» _\N{COMBINING ACUTE ACCENT}") == ["ě", "A"]
    assert not find_alphabet("de").has("ě")


def test_texts_need_the_base_letters_of_a_language_and_those_that_the_languages_of_a_script_share() -> None:
    assert find_alphabet("de").base == set("abcdefghijklmnopqrstuvwxyzäöüß")  # without é, an auxiliary letter
    assert find_alphabet("latin").base <= set("abcdefghijklmnopqrstuvwxyz")
    assert set("абвгдежзиклмнопрстуфхцчш") <= find_alphabet("cyrillic").base
    assert units("한") == set(unicodedata.normalize("NFD", "한"))
    assert find_alphabet("ko").base == units(map(chr, range(ord("가"), ord("힣") + 1)))


def test_every_language_and_script_has_base_letters_that_are_its_own() -> None:
    for name in [*languages(), *scripts()]:
        alphabet = find_alphabet(name)
        assert alphabet.base, name
        composed = unicodedata.normalize("NFC", "".join(alphabet.base))
        assert name in ("ko", "ko-CN", "tr") or all(map(alphabet.has, composed)), name


@pytest.mark.parametrize("name", ["german", "", "DE", "Latin", 7, ["de"], None])
def test_an_unknown_name_is_refused_with_the_scripts_and_a_command_that_lists_the_languages(name: Any) -> None:
    with refused(InputError, "--characters ... cyrillic ... latin", got=name, cure='print(*languages())"'):
        find_alphabet(name, "--characters")


def package(path: Path, sets: dict[str, tuple[str, str]]) -> Path:
    """Write a package of CLDR's data with the sets of base and auxiliary characters of locales."""
    contents = {
        f"package/main/{name}/characters.json": json.dumps(
            {"main": {name: {"characters": {"exemplarCharacters": base, "auxiliary": auxiliary}}}}
        )
        for name, (base, auxiliary) in sets.items()
    }
    contents["package/LICENSE"] = "Unicode"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content.encode())
            archive.addfile(member, io.BytesIO(content.encode()))
    return path


def test_the_tool_writes_the_letters_of_each_locale_that_differs_from_its_parent(tmp_path: Path) -> None:
    sets = {
        "und": ("[]", "[]"),
        "de": (r"[aä b {ch} \u00DF ʼ]", r"[é \- 7 {e\u0302}]"),
        "de-AT": (r"[ä a b {ch} ß ʼ]", "[é ê]"),
        "de-CH": ("[aä b c h]", "[é]"),
        "de-Latf": ("[]", "[]"),
    }
    alphabets.main(package(tmp_path / "a.tgz", sets), tmp_path)
    written = json.loads(gzip.decompress((tmp_path / FILE.name).read_bytes()))
    assert written == {"de": ["abchßäʼ", "éê"], "de-CH": ["abchä", "é"]}
    assert (tmp_path / "alphabets.LICENSE").read_text() == "Unicode"
    content = (tmp_path / FILE.name).read_bytes()
    alphabets.main(package(tmp_path / "b.tgz", sets), tmp_path)
    assert (tmp_path / FILE.name).read_bytes() == content


def test_a_range_which_would_lose_letters_is_an_error() -> None:
    with pytest.raises(ValueError, match="ranges"):
        alphabets.letters("[a-z]")


def test_the_wheel_contains_the_letters_and_their_licence() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = about["tool"]["setuptools"]["package-data"]["asr.base.text"]
    files = {path.name for pattern in patterns for path in FILE.parent.glob(pattern)} - {"alphabets.py"}
    assert files == {"alphabets.json.gz", "alphabets.LICENSE"}
    assert "asr/base/text/alphabets.LICENSE" in about["project"]["license-files"]
    assert "Unicode-3.0" in about["project"]["license"]
    assert "Unicode-3.0" in (ROOT / "asr" / "base" / "text" / "alphabets.LICENSE").read_text(encoding="utf-8")
