"""python -m docs.pages.agents: write AGENTS.md and llms.txt from the documents of the repository (make snapshots).

AGENTS.md is read by programs that write code, llms.txt (llmstxt.org) by programs that answer questions.
"""

import os
import re
from functools import partial

from asr.__main__ import COMMANDS
from docs.pages.documents import ROOT
from docs.pages.markdown import anchors, sections, table, with_links

SOURCES = {  # sections of AGENTS.md, by the document that contains them
    "README.md": ("install-and-two-commands", "use"),
    "docs/guide/design.md": ("four-floors",),
    "CONTRIBUTING.md": ("run-it", "how-the-code-is-laid-out", "add-a-part", "errors", "prose"),
}


def text_of(path: str) -> str:
    """Return the text of a document, with the targets of its links relative to the root of the repository."""
    return with_links((ROOT / path).read_text(encoding="utf-8"), partial(_from_root, path))


def _from_root(document: str, target: str) -> str:
    path, separator, anchor = target.partition("#")
    linked = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
    return f"{linked}{separator}{anchor}"


def index() -> list[tuple[str, list[str]]]:
    """Return the groups of the table in docs/README.md: a title, and a line of Markdown for each document."""
    groups: list[tuple[str, list[str]]] = [("Begin", [])]
    for first, second in re.findall(r"^\| (.+?) \|(.*)\|$", text_of("docs/README.md"), re.MULTILINE):
        if first.startswith("**"):
            groups.append((first.strip("*"), []))
        else:
            groups[-1][1].append(f"- {first}: {second.strip()}")
    return groups


def agents() -> str:
    """Return the text of AGENTS.md."""
    head = f"""# asr

Generated from {", ".join(SOURCES)} and docs/README.md by `make snapshots`. Change those files, not this one.
"""
    chosen = [
        section.strip() + "\n"
        for path, names in SOURCES.items()
        for section in sections(text_of(path))
        if anchors(section)[:1] and anchors(section)[0] in names
    ]
    rows = [[f"`python -m asr.{name}`", about] for commands in COMMANDS.values() for name, about in commands.items()]
    commands = f"## Commands\n\n`--help` prints the options of each.\n\n{table(['command', 'purpose'], rows)}"
    lines = "\n".join(line for _, lines in index() for line in lines)
    return "\n".join([head, *chosen[:2], commands, *chosen[2:], f"## Documents\n\n{lines}\n"])


def llms() -> str:
    """Return the text of llms.txt."""
    about = text_of("README.md").split("\n\n")[1].replace("\n", " ")
    groups = "\n".join(f"\n## {title}\n\n" + "\n".join(lines) for title, lines in index())
    return f"# asr\n\n> {about}\n{groups}\n"


if __name__ == "__main__":
    (ROOT / "AGENTS.md").write_text(agents(), encoding="utf-8")
    (ROOT / "llms.txt").write_text(llms(), encoding="utf-8")
