"""The notebook of the tutorials: its cells run, and its page shows them."""

import json
import os
import re
from pathlib import Path

import pytest

from docs.pages.documents import DocumentPages
from docs.pages.markdown import links
from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs" / "tutorials" / "fine_tune.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def source(cell: dict[str, list[str]]) -> str:
    return "".join(cell["source"])


def test_the_notebook_has_no_outputs() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)


def test_the_links_of_the_notebook_lead_to_files() -> None:
    targets = [target for cell in CELLS if cell["cell_type"] == "markdown" for target in links(source(cell))]
    assert targets
    assert all((NOTEBOOK.parent / target).is_file() for target in targets)


def test_the_page_of_the_notebook_shows_its_cells_and_links_to_its_file() -> None:
    contents = DocumentPages().contents
    page = contents["tutorials/fine_tune.md"]
    assert contents["tutorials/fine_tune.ipynb"] == NOTEBOOK.read_text(encoding="utf-8")
    assert re.match(r'# [^\n]+\n\n.*<a href="fine_tune\.ipynb" download>', page)
    for cell in CELLS:
        if cell["cell_type"] == "code":
            assert f"```python\n{source(cell)}\n```\n" in page
    assert "](fine_tune.md)" in contents["tutorials/index.md"]


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute of processor time; processors are shared
def test_the_notebook_runs_and_the_fine_tuned_model_makes_fewer_errors(tmp_path: Path) -> None:
    """The notebook runs in a temporary folder, because it writes files next to the package `recipes`."""
    import nbformat
    from nbclient import NotebookClient

    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path / "ipython")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (tmp_path, ROOT)))
    del environment["PYTEST_CURRENT_TEST"]  # if it is set, ipykernel does not show what the commands print
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=400, resources={"metadata": {"path": str(tmp_path)}})
    client.execute(env=environment)

    runs = tmp_path / "runs" / "fine_tune"
    before, after = (json.loads((runs / name / "results.json").read_text()) for name in ("first", "second"))
    assert after["second_test"]["wer"] < before["second_test"]["wer"]
    first_run, second_run, texts, report = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"][2:]
    assert "second_test: WER" in "".join(output.get("text", "") for output in first_run)
    assert re.search(r"before, .* after: -", "".join(output.get("text", "") for output in second_run))
    assert "".join(output.text for output in texts).count("after:") == 5
    assert "<iframe srcdoc=" in report[0].data["text/html"]
