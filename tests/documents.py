"""The project's documents in Markdown: their code blocks, commands, headings and links."""

import re
import shlex
from pathlib import Path

from tests.conftest import ROOT

README = ROOT / "README.md"
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
WITH_COMMANDS = [README, ROOT / "benchmarks" / "README.md", *sorted((ROOT / "recipes").glob("*/README.md")), *GUIDE]
OTHERS = [*sorted((ROOT / "docs").glob("*.md")), *sorted(set(ROOT.glob("*.md")) - {README})]
DOCUMENTS = [*WITH_COMMANDS, *OTHERS]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(document: Path) -> str:
    """Path of a document from the root of the repository."""
    return document.relative_to(ROOT).as_posix()


def code_blocks(document: Path, language: str = "") -> list[str]:
    """Contents of the code blocks in a language; "" selects the blocks that name none."""
    blocks = BLOCK.findall(document.read_text(encoding="utf-8"))
    return [content for named, content in blocks if named == language]


def prose(document: Path) -> str:
    """Text of a document without its code blocks."""
    return BLOCK.sub("", document.read_text(encoding="utf-8"))


def code_spans(document: Path) -> list[str]:
    """Contents of `...` in the prose, on one line each."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(document))]


def commands(document: Path) -> list[list[str]]:
    """Return the words after `-m` in each line of the code blocks and in each code span; "..." is left out."""
    lines = "\n".join(code_blocks(document)).replace("\\\n", " ").splitlines()
    lines += [span for span in code_spans(document) if re.match(r"(\S+=\S+ )*python -m \S+ \S", span)]
    after = [line.split(" -m ", 1)[1] for line in lines if re.search(r"(python|torchrun).* -m ", line)]
    split = [shlex.split(command, comments=True) for command in after]
    return [[word for word in command if word != "..."] for command in split]


def headings(document: Path) -> set[str]:
    """Anchors of the headings, as GitHub forms them."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", prose(document), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeated = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in anchors)
        anchors.add(f"{anchor}-{repeated}" if repeated else anchor)
    return anchors


def links(document: Path) -> list[str]:
    """Targets of the links and pictures that lead to files of the repository or to headings."""
    without_code = re.sub(r"`[^`]*`", "", prose(document))
    targets = re.findall(r"\]\(([^)\s]+)\)", without_code)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]
