"""The page of a bulk job shows the contents of report.json."""

import json
import re
from pathlib import Path
from typing import Any

from asr.apps.bulk.page import bulk_page
from tests.browser import browser, overflow, visit  # noqa: F401
from tests.bulk import finished_job, write_input

HOSTILE = "</script><img src=x onerror=\"document.title='broken out'\">"


def test_the_page_shows_the_figures_of_the_report(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    output = finished_job(write_input(tmp_path / "input", count=6), tmp_path, "--segments")
    report = json.loads((output / "report.json").read_text())
    seen = visit(browser, output / "report.html")
    for name, value in (
        ("hours", f"{report['hours']:,.2f}"),
        ("failures", str(report["num_failures"])),
        ("texts", str(report["num_texts"])),
        ("words", str(report["num_words"])),
        ("segments", str(report["num_segments"])),
    ):
        assert seen.page.locator(f"[data-figure={name}]").inner_text() == value
    shown = seen.page.locator("main").inner_text()
    for failure in report["failures"]:
        assert failure["id"] in shown
        assert failure["reason"] in shown
    assert report["num_failures"] == 5
    assert seen.complaints == []
    assert not overflow(seen.page)


def test_untrusted_names_and_texts_are_displayed_as_text(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    worker = {"parts": 1, "audio_seconds": 1.0, "seconds": 1.0, "waiting_seconds": 0.5, "audio_seconds_per_second": 1.0}
    entry = {"id": HOSTILE, "value": 1.0, "seconds": 1.0, "text": HOSTILE + "\udcff"}
    report = {
        "input": HOSTILE,
        "model": HOSTILE,
        "settings": {"segments": False},
        "hours": 1.0,
        "confidence": [1] * 20,
        "workers": {HOSTILE: worker},
        "failures": [{"id": HOSTILE, "reason": HOSTILE}],
        **{f"num_{key}": 1 for key in ("parts", "utterances", "failures", "texts", "without_words", "words")},
        **{key: [entry] for key in ("longest", "emptiest", "repetitive")},
    }
    path = tmp_path / "report.html"
    path.write_text(bulk_page(report), encoding="utf-8")
    seen = visit(browser, path)
    assert seen.page.title() == "Bulk transcription"
    assert len(re.findall("broken out", seen.page.locator("main").inner_text())) >= 8
