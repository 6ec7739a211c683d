"""Write the letters of the languages of CLDR to asr/base/text: python -m tools.alphabets cldr-misc-full-48.2.0.tgz.

The argument is the package of CLDR's data, which `npm pack cldr-misc-full` downloads.
"""

import gzip
import json
import re
import sys
import tarfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "asr" / "base" / "text"
FILE = re.compile(r"package/main/([\w-]+)/characters\.json")
ROOT_LOCALE = "und"  # the locale of no language
ITEM = re.compile(r"\{(.*?)\}|(.)")  # of a set: a sequence of characters in braces, or a character
ESCAPED = re.compile(r"\\(?:u([0-9A-F]{4})|(.))")


def letters(unicode_set: str) -> str:
    """Return the letters of a set of CLDR, such as "[aä b {ch}]", composed with their marks and in order.

    Raises:
        ValueError: the set has a range, which CLDR's JSON does not use.
    """
    if re.search(r"[^\\\s\[]-", unicode_set):
        raise ValueError(f"a set must not have ranges; got {unicode_set}")
    plain = ESCAPED.sub(lambda match: chr(int(match[1], 16)) if match[1] else match[2], unicode_set[1:-1])
    items = (sequence or character for sequence, character in ITEM.findall(plain))
    return "".join(sorted({each for item in items for each in unicodedata.normalize("NFC", item) if each.isalpha()}))


def alphabets(package: Path) -> dict[str, tuple[str, str]]:
    """Return the base and the auxiliary letters of each locale that has some, by its name.

    A locale with the letters of its parent is left out, as de-AT, whose parent is de.
    """
    found = {name: (letters(base), letters(auxiliary)) for name, base, auxiliary in sorted(_sets(package))}
    return {
        name: pair
        for name, pair in found.items()
        if pair[0] and name != ROOT_LOCALE and pair != found.get(name.rpartition("-")[0])
    }


def _sets(package: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each locale and its sets of base and auxiliary characters."""
    with tarfile.open(package) as archive:
        for member in archive:
            content = archive.extractfile(member) if (match := FILE.fullmatch(member.name)) else None
            if match and content:
                [locale] = json.load(content)["main"].values()
                sets = locale["characters"]
                yield match[1], sets.get("exemplarCharacters", "[]"), sets.get("auxiliary", "[]")


def main(package: Path, folder: Path = FOLDER) -> None:
    """Write the letters, and the licence of the package beside them; equal packages give equal files."""
    content = json.dumps(alphabets(package), ensure_ascii=False, separators=(",", ":")).encode()
    (folder / "alphabets.json.gz").write_bytes(gzip.compress(content, mtime=0))
    with tarfile.open(package) as archive:
        licence = archive.extractfile("package/LICENSE")
        assert licence is not None
        (folder / "alphabets.LICENSE").write_bytes(licence.read())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
