"""Helpers for Markdown: anchors of headings, targets of links, sections and tables."""

import re
from collections.abc import Callable

CODE = re.compile(r"^```.*?^```$|`[^`]*`", re.MULTILINE | re.DOTALL)
LINK_OR_CODE = re.compile(rf"({CODE.pattern})|\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#{1,6}) (.+?)\s*$", re.MULTILINE)


def anchors(text: str) -> list[str]:
    """Return the anchors of the headings in order; GitHub and the site give headings the same anchors."""
    formed: list[str] = []
    for _, heading in HEADING.findall(BLOCK.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        repeated = sum(re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other) is not None for other in formed)
        formed.append(f"{anchor}-{repeated}" if repeated else anchor)
    return formed


def links(text: str) -> list[str]:
    """Return the targets of links and pictures that lead to files of the repository or to headings."""
    targets = [target for _, target in LINK_OR_CODE.findall(text) if target]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def spans(text: str) -> list[str]:
    """Return the contents of each `...` outside of code blocks, with line breaks replaced by spaces."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]


def with_links(text: str, moved: Callable[[str], str]) -> str:
    """Replace the target of each link and picture that leads to a file of the repository or to a heading."""

    def replaced(match: re.Match[str]) -> str:
        target = match[2]
        return match[0] if target is None or re.match(r"[a-z]+:", target) else f"]({moved(target)})"

    return LINK_OR_CODE.sub(replaced, text)


def sections(text: str) -> list[str]:
    """Split a document before each heading of the second level; the first part is the introduction."""
    code = [match.span() for match in BLOCK.finditer(text)]
    starts = [match.start() for match in HEADING.finditer(text) if match[1] == "##"]
    starts = [start for start in starts if not any(first <= start < last for first, last in code)]
    return [text[start:end] for start, end in zip([0, *starts], [*starts, len(text)], strict=True)]


def raised(section: str) -> str:
    """Return a section as a separate document, in which each heading is one level higher."""
    return "".join(
        part if part.startswith("```") else re.sub(r"^#(#+ )", r"\1", part, flags=re.MULTILINE)
        for part in re.split(rf"({BLOCK.pattern})", section, flags=re.MULTILINE | re.DOTALL)
    )


def table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown. Line breaks in cells become spaces, and a | in a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    escaped = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped) + "\n"
