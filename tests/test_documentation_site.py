"""The documentation site can be built, loads nothing from other hosts, and has a complete reference.

Its search works when a page is opened as a file.
"""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from asr.__main__ import COMMANDS
from asr.base.settings.conf import CONF
from asr.base.settings.plugins import homes
from docs.pages.commands import commands_pages, parser_of
from docs.pages.documents import DocumentPages
from docs.pages.markdown import raised, sections
from docs.pages.settings import PLAIN_GROUPS, comments, settings_pages
from tests.browser import Visit, browser, overflow, visit, wait_until  # noqa: F401
from tests.conftest import ROOT
from tests.site_build import built_site

pytestmark = pytest.mark.apps  # the site has pages of commands of apps

PAGES_ON_A_PHONE = ["index.html", "guide/train.html", "reference/settings/index.html", "coming-from/index.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    return built_site(tmp_path_factory.mktemp("documentation"))


class Loaded(HTMLParser):
    """Collects the addresses of everything that a page loads; targets of links are not loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") not in ("next", "prev", "canonical"):
            self.addresses.append(values.get("href") or "")
        for key in ("src", "srcset", "data", "poster", "style"):
            self.addresses.append(values.get(key) or "")


def loaded(page: str) -> list[str]:
    parser = Loaded()
    parser.feed(page)
    return [address for address in parser.addresses if address]


def is_elsewhere(address: str) -> bool:
    return re.search(r"(?:^|[\s(\"'])(?:https?:)?//", address) is not None


def test_no_page_loads_a_file_from_another_host(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        assert not [address for address in loaded(page.read_text(encoding="utf-8")) if is_elsewhere(address)], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


@pytest.mark.parametrize(
    "page",
    [
        "<script src='https://unpkg.com/iframe-worker/shim'></script>",
        "<link rel=stylesheet href=//fonts.example/a.css>",
        "<div style=\"background: url('https://example.org/a.png')\">",
    ],
)
def test_an_address_on_another_host_is_detected(page: str) -> None:
    assert [is_elsewhere(address) for address in loaded(page)] == [True]
    assert not any(map(is_elsewhere, loaded("<a href='https://example.org'></a><img src='../a.png'>")))


@pytest.fixture(scope="module")
def opened(site: Path, browser: Any) -> Visit:  # noqa: F811
    """A page opened as a file, with the index of its search, which takes seconds to make."""
    seen = visit(browser, site / "guide" / "train.html")
    seen.page.click("input[name=query]")
    wait_until(seen.page, "!document.querySelector('.md-search-result__meta').textContent.includes('Initializing')")
    return seen


def searched(page: Any, words: str) -> None:
    """Search for words, and wait for results."""
    page.fill("input[name=query]", "")
    page.keyboard.press("Backspace")  # the search starts when a key is released
    wait_until(page, "document.querySelectorAll('.md-search-result__item').length === 0")
    page.keyboard.type(words)
    wait_until(page, "document.querySelectorAll('.md-search-result__item').length > 0")


def test_the_search_works_on_pages_opened_as_files(opened: Visit) -> None:
    searched(opened.page, "hotword")
    assert "language-models.html" in opened.page.inner_html(".md-search-result__list")
    assert opened.complaints == []
    assert all(request.startswith("file:") for request in opened.requests)


@pytest.mark.parametrize(
    "words",
    ["recognizer", "recogniser", "normalization", "callback", "plugin", "out of memory", "batch size", "learning rate"],
)
def test_the_search_lists_a_page_of_the_guide_or_a_tutorial_first(opened: Visit, words: str) -> None:
    searched(opened.page, words)
    first = opened.page.get_attribute(".md-search-result__item > a", "href")
    assert Path(first.partition("?")[0]).parent.name in ("guide", "tutorials"), first


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("stereo", "guide/transcribe"),
        ("timestamps", "guide/transcribe"),
        ("word timestamps", "guide/transcribe"),
        ("subtitles", "guide/transcribe"),
        ("telephone", "guide/transcribe"),
        ("mp3", "guide/transcribe"),
        ("wer too high", "guide/evaluate"),
        ("loss does not go down", "guide/train"),
        ("training is slow", "guide/choosing"),
        ("out of memory", "guide/choosing"),
        ("multiple gpus", "guide/many-processes"),
        ("resume", "guide/interrupted-runs"),
        ("my own data", "guide/your-data"),
        ("csv", "guide/your-data"),
        ("finetune", "guide/fine-tuning"),
        ("push to hub", "guide/export"),
        ("export onnx", "guide/export"),
        ("real time", "guide/streaming"),
        ("microphone", "guide/streaming"),
        ("long audio", "guide/long-recordings"),
        ("noise", "guide/noise"),
        ("hotwords", "guide/language-models"),
        ("openai api", "guide/serve"),
        ("docker", "guide/install"),
        ("punctuation", "tutorials/written"),
        ("whisper", "coming-from/whisper"),
    ],
)
def test_the_search_lists_the_page_that_answers_first(opened: Visit, words: str, page: str) -> None:
    searched(opened.page, words)
    first = opened.page.get_attribute(".md-search-result__item > a", "href")
    assert first.partition("?")[0].endswith(f"/{page}.html"), first


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
@pytest.mark.parametrize("page", PAGES_ON_A_PHONE)
def test_a_page_fits_the_width_of_a_phone(site: Path, browser: Any, page: str, scheme: str) -> None:  # noqa: F811
    seen = visit(browser, site / page, width=390, height=844, scheme=scheme)
    assert overflow(seen.page) == 0


def test_the_reference_has_every_file_of_conf() -> None:
    pages = settings_pages()
    for path in {path.relative_to(home.conf) for home in homes() for path in home.conf.rglob("*.yaml")}:
        name = path.as_posix()
        group = name.split("/")[0].removesuffix(".yaml")
        if "/" not in name:
            assert any(f"`conf/{name}`" in page for page in pages.values())
        elif group in PLAIN_GROUPS:
            assert f"## {path.stem}\n" in pages[f"reference/settings/{group}.md"]
        else:
            assert f"conf/{name}`" in pages[f"reference/settings/{group}.md"]


def test_a_row_of_the_reference_has_rule_default_description_and_comment() -> None:
    page = settings_pages()["reference/settings/index.md"]
    [row] = [line for line in page.splitlines() if line.startswith("| `data.min_seconds` ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    [line] = [line for line in (CONF / "train.yaml").read_text().splitlines() if line.startswith("  min_seconds:")]
    assert cells == [
        "`data.min_seconds`",
        "a number from 0",
        "`0.1`",
        f"minimum duration.<br>*{line.partition(' # ')[2]}*",
    ]


def test_comments_belong_to_the_setting_on_their_line() -> None:
    text = "# of the file\na: 1  # one\nb:  # a section\n  c: [2,\n    3]  # two\nd: {e: null}  # three\n"
    text += "f: 'x # y'\ng: |\n  # z\n"
    assert comments(text) == {"a": "one", "b.c": "two", "d.e": "three", "d": "three"}


def test_the_reference_has_every_option_of_every_command() -> None:
    pages = commands_pages()
    names = [name for commands in COMMANDS.values() for name in commands]
    assert set(pages) == {f"reference/commands/{name}.md" for name in ["index", *names]}
    for name in set(names) - {"train", "plan", "doctor", "train_lm"}:
        for action in parser_of(name)._actions:
            assert all(f"`{option}`" in pages[f"reference/commands/{name}.md"] for option in action.option_strings)


def test_a_long_document_is_divided_into_one_page_per_section() -> None:
    text = "# All\n\nIntro.\n\n## First\n\n### Part\n\n```\n## no heading\n```\n\n## Second\n"
    introduction, first, second = sections(text)
    assert (introduction, second) == ("# All\n\nIntro.\n\n", "## Second\n")
    assert raised(first) == "# First\n\n## Part\n\n```\n## no heading\n```\n\n"


def test_links_in_documents_lead_to_pages_of_the_site() -> None:
    contents = DocumentPages().contents
    page = contents["guide/results.md"]
    assert "](../recipes/mini.md)" in page
    assert "](../benchmarks/matrix-products-on-amd-processors.md#matrix-products-on-amd-processors)" in page
    assert "](source/tests/test_padding.py.md)" in contents["index.md"]
    assert contents["recipes/mini/report.png"] == (ROOT / "recipes" / "mini" / "report.png").read_bytes()
