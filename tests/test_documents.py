"""Links, files, extras and make targets that the documents name must exist; the demo prints what was spoken."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from asr.__main__ import COMMANDS
from asr.core.data.manifest import Utterance, write_manifest
from docs.pages import agents, markdown, tour
from tests.conftest import ROOT
from tests.documents import DOCUMENTS, README, code_blocks, code_spans, headings, links, name_of, prose

pytestmark = pytest.mark.apps  # the documents name files of apps

SOURCES = re.compile(r"(?:asr|benchmarks|conf|docs|recipes|tests)/[\w/.-]+\.(?:py|yaml|md)")


def missing(document: Path, target: str) -> str | None:
    """Return the problem with a link, or None if the target exists."""
    path, _, anchor = target.partition("#")
    linked = (document.parent / path).resolve() if path else document
    if not linked.exists():
        return f"{target}: no such file"
    if anchor and anchor not in headings(linked):
        return f"{target}: no such heading"
    return None


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_link_leads_to_an_existing_file_and_heading(document: Path) -> None:
    problems = [problem for target in links(document) if (problem := missing(document, target))]
    assert not problems


def test_a_link_to_an_absent_file_or_heading_is_detected(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Two *words*, `x`\n\n[a](#two-words-x) [b](#two-words) [c](other.md)\n\n```\n# no heading\n```\n")
    assert headings(page) == {"two-words-x"}
    problems = [missing(page, target) for target in links(page)]
    assert problems == [None, "#two-words: no such heading", "other.md: no such file"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_picture_has_an_alternative_text(document: Path) -> None:
    assert "![](" not in prose(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_source_file_named_in_a_document_exists(document: Path) -> None:
    named = {span for span in code_spans(document) if SOURCES.fullmatch(span)}
    assert not [path for path in named if not (ROOT / path).is_file()]


def test_every_extra_named_in_a_document_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    texts = "\n".join(document.read_text(encoding="utf-8") for document in DOCUMENTS)
    named = {name for group in re.findall(r"'\.\[([\w,-]+)\]'", texts) for name in group.split(",")}
    assert named
    assert named <= extras.keys()


def test_every_make_target_named_in_a_document_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w.-]+):", makefile, re.MULTILINE)) | {".venv-nets", ".venv-decoding"}
    texts = "\n".join([*code_blocks(README), *(span for document in DOCUMENTS for span in code_spans(document))])
    named = set(re.findall(r"^make ([\w.-]+)", texts, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_the_demo_prints_the_words_of_the_recording_that_it_transcribes(tmp_path: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [transcribed] = re.findall(r"asr\.transcribe runs/mini (data/mini/\S+)$", makefile, re.MULTILINE)
    [command] = re.findall(r"^\t@(sed .*)$", makefile, re.MULTILINE)
    folder = tmp_path / "data" / "mini"
    audio = [str(folder / "audio" / "test" / f"test-0000{number}.flac") for number in range(3)]
    texts = ["two plus two", "seven bananas, please", "turn left"]
    spoken = dict(zip(audio, texts, strict=True))
    folder.mkdir(parents=True)
    write_manifest(folder / "test.jsonl", [Utterance(path, 1.0, text, path) for path, text in spoken.items()])
    printed = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert [text for text in texts if text in printed] == [spoken[str(tmp_path / transcribed)]]


def test_agents_and_llms_txt_are_written_from_the_documents_and_their_links_lead_to_files() -> None:
    written = {"AGENTS.md": agents.agents(), "llms.txt": agents.llms()}
    for name, text in written.items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "run make snapshots"
        targets = [target.partition("#")[0] for target in markdown.links(text)]
        assert all((ROOT / target).is_file() for target in targets)
        guide = {f"docs/guide/{path.name}" for path in (ROOT / "docs" / "guide").glob("*.md")}
        assert guide <= set(targets)
    assert all(f"asr.{name}`" in written["AGENTS.md"] for commands in COMMANDS.values() for name in commands)


def test_the_tour_gives_the_lengths_of_its_files() -> None:
    """A row may be off by 20 % or 40 lines, and the sum by 10 %: an ordinary change needs no `make snapshots`."""
    text = tour.DESIGN.read_text(encoding="utf-8")
    given = tour.stops(text)
    assert [path for path in given if not (ROOT / path).is_file()] == []
    true = {path: tour.length(path) for path in given}
    wrong = [path for path, lines in given.items() if abs(lines - true[path]) > max(40, 0.2 * true[path])]
    assert wrong == [], "run make snapshots"
    [(number, total)] = tour.TOTAL.findall(text)
    assert int(number) == len(given) == len(tour.STOP.findall(text))
    assert int(total.replace(",", "")) == pytest.approx(sum(true.values()), rel=0.1), "run make snapshots"


def test_the_lengths_in_the_tour_are_written_from_its_files() -> None:
    errors, build = tour.length("asr/errors.py"), tour.length("asr/core/build.py")
    rows = "| `asr/errors.py` | {} | errors |\n| **Others** | | |\n| `asr/core/build.py` | {} | objects |\n"
    before = "9 files, 9 lines\n" + rows.format(1, "1,000")
    after = f"2 files, {round(errors + build, -2)} lines\n" + rows.format(round(errors, -1), round(build, -1))
    assert tour.with_lengths(before) == after
    assert tour.stops(after) == {"asr/errors.py": round(errors, -1), "asr/core/build.py": round(build, -1)}
