"""python -m docs.pages DIR: write the Markdown files from which mkdocs then builds the site (make docs)."""

import shutil
import sys
from pathlib import Path

from docs.pages.commands import commands_pages
from docs.pages.documents import ROOT, DocumentPages
from docs.pages.markdown import table
from docs.pages.python_api import python_pages
from docs.pages.settings import settings_pages

# Factors of scores in the search: guide and tutorials come before other pages with the same words.
BOOSTS = {"guide": 1000, "tutorials": 1000, "coming-from": 10}


def main(folder: Path) -> None:
    """Empty the folder, and write all pages and the assets of the site into it."""
    shutil.rmtree(folder, ignore_errors=True)
    pages = DocumentPages().contents | reference_pages()
    for path, content in pages.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            if path.endswith(".md") and (boost := BOOSTS.get(path.partition("/")[0])):
                content = f"---\nsearch: {{boost: {boost}}}\n---\n\n{content}"
            content = content.encode()
        file.write_bytes(content)
    shutil.copytree(ROOT / "docs" / "assets", folder / "assets")


def reference_pages() -> dict[str, str]:
    """Return the text of each page that is generated from the code and from conf/, keyed by its path in the site."""
    rows = [
        ["[Settings](settings/index.md)", "each setting with its rule, its default and its meaning"],
        ["[Command line](commands/index.md)", "each command with its options"],
        ["[Python](python/index.md)", "classes and functions of `import asr`, and the Protocols of components"],
    ]
    about = "Generated from the code and `conf/`. Terms and units: [contributing](../project/contributing.md#terms)."
    index = f"# Reference\n\n{about}\n\n{table(['pages', 'content'], rows)}"
    return {"reference/index.md": index} | settings_pages() | commands_pages() | python_pages()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m docs.pages DIR")
    main(Path(sys.argv[1]))
