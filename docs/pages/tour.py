"""python -m docs.pages.tour: write the lengths of files into the tour of docs/guide/design.md (make snapshots)."""

import re

from docs.pages.documents import ROOT

DESIGN = ROOT / "docs" / "guide" / "design.md"
STOP = re.compile(r"^(\| `([\w/.]+)` \| )([\d,]+)(?= \|)", re.MULTILINE)  # a row of a table: the file, its lines
TOTAL = re.compile(r"([\d,]+) files, ([\d,]+) lines")


def length(path: str) -> int:
    """Return the number of lines of a file of the repository."""
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def stops(text: str) -> dict[str, int]:
    """Return the files of the tour, with the lengths that the text gives."""
    return {path: int(lines.replace(",", "")) for _, path, lines in STOP.findall(text)}


def with_lengths(text: str) -> str:
    """Return the text with the true lengths, rounded to 10 lines; that of all files is rounded to 100."""
    text = STOP.sub(lambda row: f"{row[1]}{max(10, round(length(row[2]), -1))}", text)
    total = sum(map(length, stops(text)))
    return TOTAL.sub(f"{len(stops(text))} files, {round(total, -2):,} lines", text)


if __name__ == "__main__":
    DESIGN.write_text(with_lengths(DESIGN.read_text(encoding="utf-8")), encoding="utf-8")
