"""Reference of the Python API: pages that mkdocstrings fills with signatures and docstrings."""

from collections.abc import Mapping

import asr
from docs.pages.documents import ROOT
from docs.pages.markdown import spans

RECOGNIZER = "asr.core.recognition.recognizer.Recognizer"
FOLDER = "reference/python"
EXTEND = ROOT / "docs" / "guide" / "extend.md"  # this document names the modules to read first
CONTRACT = ("asr.interfaces", "asr.lengths", "asr.base.settings.rule")


def python_pages() -> dict[str, str]:
    """Return the text of each page, keyed by its path in the site."""
    classes = [name for name in dir(asr) if not name.startswith("_")]
    exported = {f"{asr.MODULES.get(name, 'asr.errors')}.{name}": f"asr.{name}" for name in classes}
    about = "`import asr` gives these names; [how stable they are](../../guide/stability.md). "
    about += "Examples: [transcribe](../../guide/transcribe.md#in-python), [streaming](../../guide/streaming.md)."
    for_parts = "What a component of your own must implement, and what it may use: [extend](../../guide/extend.md)."
    to_read = "Modules that [extend](../../guide/extend.md#where-a-contribution-goes) names, in alphabetical order."
    modules = sorted(extension_modules() - {*CONTRACT, *asr.MODULES.values()})
    pages = {
        "index": _page("asr", about, exported),
        "contract": _page("Protocols and rules", for_parts, {name: name for name in CONTRACT}),
        "modules": _page("Modules to read first", to_read, {name: name for name in modules}),
    }
    return {f"{FOLDER}/{name}.md": text for name, text in pages.items()}


def extension_modules() -> set[str]:
    """Return the modules of asr, without packages, that are named on the page about extensions."""
    files = [span for span in spans(EXTEND.read_text(encoding="utf-8")) if span.startswith("asr/")]
    return {
        span.removesuffix(".py").replace("/", ".")
        for span in files
        if (ROOT / span).is_file() and not span.endswith("__init__.py")
    }


def _page(title: str, about: str, names: Mapping[str, str]) -> str:
    """Return a page with a section for each object; `names` maps the path of an object to its heading.

    The section on the recogniser has only its public methods. Sections on Protocols also have methods without a
    docstring.
    """
    parts = [f"# {title}\n\n{about}\n"]
    for path, heading in names.items():
        members = "members: [transcribe, to]" if path == RECOGNIZER else f"show_if_no_docstring: {path in CONTRACT}"
        parts.append(f"::: {path}\n    options:\n      heading: {heading}\n      {members}\n")
    return "\n".join(parts)
