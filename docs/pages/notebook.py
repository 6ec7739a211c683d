"""Jupyter notebooks as Markdown."""

import json


def notebook_markdown(text: str, name: str) -> str:
    """Return a notebook's cells in Markdown, without outputs; a link to the file follows the title.

    Args:
        text: the notebook, in JSON.
        name: name of the notebook file, which is in the folder of the page.
    """
    first, *others = (_cell(cell) for cell in json.loads(text)["cells"])
    title, _, introduction = first.partition("\n")
    link = f'This page is a Jupyter notebook: <a href="{name}" download>download {name}</a>.'
    return "\n\n".join([title, link, introduction.strip(), *others]) + "\n"


def _cell(cell: dict[str, object]) -> str:
    lines = cell["source"]
    source = "".join(lines) if isinstance(lines, list) else str(lines)
    return source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
