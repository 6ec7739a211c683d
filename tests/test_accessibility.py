"""axe-core finds no fault of serious or critical impact in the documentation site, reports and the server's page."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asr.compare import main as compare
from asr.doctor import doctor
from asr.errors import InputError
from asr.evaluate import main as evaluate
from tests.axe import axe, faults  # noqa: F401
from tests.browser import SIMULATED_MICROPHONE, launched, visit, wait_until
from tests.bulk import finished_job, write_input
from tests.conftest import TINY, settings_with
from tests.files import serving_files
from tests.live import live_process
from tests.refusals import refused
from tests.serving import serving
from tests.site_build import built_site
from tests.test_doctor import Corpus, plant

pytestmark = pytest.mark.slow

WINDOWS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
PAGES = [  # pages with each kind of content: text, code, pictures, wide tables, settings, options, docstrings, source
    *("index.html", "404.html", "guide/index.html", "guide/extend.html", "guide/results.html"),
    *("tutorials/ten-minutes.html", "coming-from/nemo.html", "recipes/mini.html", "benchmarks/index.html"),
    *("reference/settings/encoder.html", "reference/commands/train.html", "reference/commands/transcribe.html"),
    *("reference/python/index.html", "source/tests/test_padding.py.html", "project/changelog.html"),
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser with a simulated microphone, which beeps."""
    yield from launched(*SIMULATED_MICROPHONE)


Check = Callable[..., None]


@pytest.fixture
def check(chromium: Any, axe: str) -> Check:  # noqa: F811
    """A function that opens a page in each window of WINDOWS, prepares it, and checks that axe-core finds no fault."""

    def check(address: Path | str, prepare: Callable[[Any], object] = lambda page: None) -> None:
        found = {}
        for width, scheme in WINDOWS:
            page = visit(chromium, address, width, 900, scheme).page
            page.emulate_media(reduced_motion="reduce")  # axe-core cannot measure a colour during a transition
            prepare(page)
            found[width, scheme] = faults(page, axe)
            page.context.close()
        assert not any(found.values()), json.dumps({str(key): value for key, value in found.items()}, indent=1)

    return check


def open_all(page: Any) -> None:
    """Unfold all parts of the page that are folded."""
    page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")


@pytest.fixture(scope="module")
def evaluation(fluent: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with report.html and test.utterances.jsonl of an evaluation; each reference has an unspoken word."""
    folder = tmp_path_factory.mktemp("evaluation")
    lines = [json.loads(line) for line in (fluent / "test.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        line["audio_filepath"] = str(fluent / line["audio_filepath"])
        line |= {"speaker": f"speaker {number % 7}", "text": f"{line['text']} fed"}
    manifest = folder / "test.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = ["--report", str(folder / "report.html"), "--output-dir", str(folder), "--device", "cpu"]
    assert evaluate([str(fluent / "run"), str(manifest), *written]) == 0
    return folder


def test_axe_core_finds_no_fault_in_the_report_of_a_training_run(fluent: Path, check: Check) -> None:
    check(fluent / "run" / "report.html", open_all)


def open_first_utterance(page: Any) -> None:
    page.locator("#utterances tbody tr[data-index] a").first.click()
    wait_until(page, "document.querySelector('.player canvas')?.hidden === false")


def test_axe_core_finds_no_fault_in_the_report_of_an_evaluation(evaluation: Path, check: Check) -> None:
    check(evaluation / "report.html", open_all)
    check(evaluation / "report.html", open_first_utterance)


def test_axe_core_finds_no_fault_in_the_report_of_a_comparison(evaluation: Path, check: Check) -> None:
    lines = [json.loads(line) for line in (evaluation / "test.utterances.jsonl").read_text().splitlines()]
    for line in lines[::3]:
        line["words"][0]["text"] = "wrong"
        line["hypothesis"] = " ".join(word["text"] for word in line["words"])
    (evaluation / "worse.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = [str(evaluation / name) for name in ("test.utterances.jsonl", "worse.jsonl")]
    assert compare([*written, "--report", str(evaluation / "comparison.html")]) == 0
    check(evaluation / "comparison.html", open_all)
    check(evaluation / "comparison.html", open_first_utterance)


def test_axe_core_finds_no_fault_in_the_report_of_the_doctor(tmp_path: Path, check: Check) -> None:
    corpus = Corpus(tmp_path)
    plant(corpus)
    with refused(InputError, "not start"):
        doctor(settings_with(*TINY, *corpus.write(), f"run_dir={tmp_path / 'run'}"))
    check(tmp_path / "run" / "doctor.html", open_all)


def test_axe_core_finds_no_fault_in_the_report_of_a_bulk_job(tmp_path: Path, check: Check) -> None:
    output = finished_job(write_input(tmp_path / "input", count=6), tmp_path, "--segments")
    check(output / "report.html", open_all)


def transcribed(page: Any) -> None:
    page.get_by_role("button", name="Example").click()
    page.wait_for_selector("#result:not([hidden])")
    open_all(page)


def test_axe_core_finds_no_fault_in_the_page_of_a_server(fluent: Path, check: Check, tmp_path: Path) -> None:
    (tmp_path / "notes.wav").write_text("not audio")

    def blocked(page: Any) -> None:
        page.set_input_files("#file", tmp_path / "notes.wav")
        page.wait_for_selector("#error:not([hidden])")

    with serving(fluent / "run", "--example", fluent / "audio" / "test-0.flac") as server:
        check(server.address + "/")
        check(server.address + "/", transcribed)
        check(server.address + "/", blocked)


def test_axe_core_finds_no_fault_in_the_page_of_a_server_during_live_captions(check: Check) -> None:
    def captioned(page: Any) -> None:
        page.get_by_role("button", name="Captions", exact=True).click()
        wait_until(page, "document.querySelector('#lines').textContent.trim().length > 3", 60)

    with live_process("tests.listener.listener()", most=1) as server:
        check(server.address + "/", captioned)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the documentation site."""
    with serving_files(built_site(tmp_path_factory.mktemp("documentation"))) as address:
        yield address


@pytest.mark.parametrize("page", PAGES)
def test_axe_core_finds_no_fault_in_the_documentation_site(site: str, page: str, check: Check) -> None:
    check(f"{site}/{page}")


def test_axe_core_finds_no_fault_in_the_search_of_the_documentation_site(site: str, check: Check) -> None:
    def search(page: Any) -> None:
        page.locator("label[for=__search]:visible, input[name=query]:visible").first.click()
        page.keyboard.type("hotword")
        wait_until(page, "document.querySelectorAll('.md-search-result__item').length > 0")

    check(f"{site}/guide/train.html", search)
