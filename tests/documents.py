"""The project's documents in Markdown: their code blocks, commands, headings and links."""

import re
import shlex
from pathlib import Path

from docs.pages import markdown
from tests.conftest import ROOT

README = ROOT / "README.md"
INDEXES = [*sorted((ROOT / "docs").rglob("index.md")), ROOT / "docs" / "README.md"]
GUIDE = sorted(set((ROOT / "docs").rglob("*.md")) - {*INDEXES})
WITH_COMMANDS = [README, ROOT / "benchmarks" / "README.md", *sorted((ROOT / "recipes").glob("*/README.md")), *GUIDE]
OTHERS = [*INDEXES, *sorted(set(ROOT.glob("*.md")) - {README})]
DOCUMENTS = [*WITH_COMMANDS, *OTHERS]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(document: Path) -> str:
    """Return a document's path from the root of the repository."""
    return document.relative_to(ROOT).as_posix()


def code_blocks(document: Path, language: str = "") -> list[str]:
    """Return the contents of the code blocks in a language; "" selects blocks without a language."""
    blocks = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [content for named, content in blocks if named == language]


def prose(document: Path) -> str:
    """Return the text of a document without its code blocks."""
    return BLOCK.sub("", document.read_text(encoding="utf-8"))


def code_spans(document: Path) -> list[str]:
    """Return the contents of each `...` in the prose, on one line each."""
    return markdown.spans(document.read_text(encoding="utf-8"))


def commands(document: Path) -> list[list[str]]:
    """Return the words after `-m`, except "...", for each line of the code blocks and each code span."""
    lines = "\n".join(code_blocks(document)).replace("\\\n", " ").splitlines()
    lines += [span for span in code_spans(document) if re.match(r"(\S+=\S+ )*python -m \S+ \S", span)]
    after = [line.split(" -m ", 1)[1] for line in lines if re.search(r"(python|torchrun).* -m ", line)]
    split = [shlex.split(command, comments=True) for command in after]
    return [[word for word in command if word != "..."] for command in split]


def headings(document: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub forms them."""
    return set(markdown.anchors(document.read_text(encoding="utf-8")))


def links(document: Path) -> list[str]:
    """Return the targets of links and pictures that lead to files of the repository or to headings."""
    return markdown.links(document.read_text(encoding="utf-8"))
