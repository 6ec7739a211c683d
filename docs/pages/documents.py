"""The documents of the repository as pages of the site: the path of each page, and its links."""

import os
from functools import partial
from pathlib import Path, PurePosixPath

from docs.pages.markdown import anchors, raised, sections, with_links
from docs.pages.notebook import notebook_markdown

ROOT = Path(__file__).parents[2]
BENCHMARKS = "benchmarks/README.md"  # each of its sections becomes a page
LANGUAGES = {".py": "python", ".yaml": "yaml", ".js": "javascript"}
PICTURES = {".png", ".svg"}
NOTEBOOK = ".ipynb"
PROJECT = ("CONTRIBUTING", "CODE_OF_CONDUCT", "MAINTAINERS", "ROADMAP", "SECURITY", "CHANGELOG")


def documents() -> dict[str, str]:
    """Return a dict from the path of each document in the repository to the path of its page in the site."""
    guide = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    notebooks = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob(f"*/*{NOTEBOOK}"))
    recipes = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").glob("*/README.md"))
    pages = {path: path.removeprefix("docs/") for path in guide}
    pages |= {path: path.removeprefix("docs/").removesuffix(NOTEBOOK) + ".md" for path in notebooks}
    pages |= {path: f"recipes/{PurePosixPath(path).parent.name}.md" for path in recipes}
    pages |= {f"{name}.md": f"project/{name.lower()}.md" for name in PROJECT}
    return pages | {"README.md": "index.md", "docs/README.md": "guide/index.md", BENCHMARKS: "benchmarks/index.md"}


class DocumentPages:
    """The pages of all documents, and the files that they link to.

    Attributes:
        contents: text or bytes of each file, keyed by its path in the site.
    """

    def __init__(self) -> None:
        self.contents: dict[str, str | bytes] = {}
        self.pages = documents()
        for source, page in self.pages.items():
            text = (ROOT / source).read_text(encoding="utf-8")
            if source.endswith(NOTEBOOK):
                notebook = PurePosixPath(page).with_suffix(NOTEBOOK)
                self.contents[str(notebook)] = text
                text = notebook_markdown(text, notebook.name)
            introduction, *others = sections(text) if source == BENCHMARKS else [text]
            parts = {page: introduction} | {_section_page(section): raised(section) for section in others}
            for path, part in parts.items():
                self.contents[path] = with_links(part, partial(self._target, source, path))

    def _target(self, source: str, page: str, target: str) -> str:
        """Return the target of a link in the site; a linked file that is not a document becomes a page or a picture.

        Args:
            source: path of the document.
            page: path in the site of the page that has the link.
            target: target of the link in the document.
        """
        path, _, anchor = target.partition("#")
        linked = os.path.normpath(PurePosixPath(source).parent / path) if path else source
        if linked == BENCHMARKS and anchor:
            split = sections((ROOT / BENCHMARKS).read_text(encoding="utf-8"))[1:]
            there = next(_section_page(section) for section in split if anchor in anchors(section))
        else:
            there = self.pages.get(linked) or self._add(linked)
        relative = os.path.relpath(there, PurePosixPath(page).parent) if there != page or not anchor else ""
        return f"{relative}#{anchor}" if anchor else relative

    def _add(self, path: str) -> str:
        """Add a picture unchanged, or a text file as a page with a code block; return the path in the site."""
        file = ROOT / path
        if file.suffix in PICTURES:
            self.contents[path] = file.read_bytes()
            return path
        page, text = f"source/{path}.md", file.read_text(encoding="utf-8")
        head = f"---\nsearch: {{exclude: true}}\n---\n\n# {path}\n\n"
        self.contents[page] = f"{head}````{LANGUAGES.get(file.suffix, 'text')}\n{text}````\n"
        return page


def _section_page(section: str) -> str:
    return f"benchmarks/{anchors(section)[0]}.md"
