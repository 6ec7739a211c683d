"""A real headless browser for tests of web pages. If no browser is installed, these tests are skipped.

A test module that uses the fixture imports it: `from tests.browser import browser  # noqa: F401`.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--autoplay-policy=no-user-gesture-required",
]
SIMULATED_MICROPHONE = "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def launched(*more: str) -> Iterator[Any]:
    """Start Chromium with additional arguments, and close it at the end.

    The test is skipped if Chromium or playwright is not installed.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[test]'")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, *more])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    yield from launched()


@dataclass
class Visit:
    """An open page, its console messages, and the addresses it has requested."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


def visit(browser: Any, address: str | Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Visit:
    """Open a file or an address in a window of this size; no request of the page is blocked."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    seen = Visit(page)
    page.on("console", lambda message: seen.complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: seen.complaints.append(str(error)))
    page.on("request", lambda request: seen.requests.append(request.url))
    page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
    return seen


@contextmanager
def visiting(browser: Any, address: str) -> Iterator[Visit]:
    """Open a page; at the end, check that its console has no errors."""
    seen = visit(browser, address)
    yield seen
    seen.page.context.close()
    assert seen.complaints == []


def wait_until(page: Any, expression: str, seconds: float = 15.0) -> None:
    """Wait until a JavaScript expression is true; playwright's own wait needs eval, which the pages of asr forbid."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"the expression did not become true: {expression}"
        page.wait_for_timeout(20)


CONTRAST = """() => {
  const parse = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const light = ({ rgb }) => {
    const [r, g, b] = rgb.map((one) => {
      const part = one / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.a === 1) return colour;
      if (colour.a > 0) throw new Error(`see-through background of ${at.outerHTML.slice(0, 80)}`);
    }
    return { rgb: [255, 255, 255], a: 1 };
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("script, style, :disabled")) continue;
    const style = getComputedStyle(element);
    const text = parse(element instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(text), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const large = parseFloat(style.fontSize) >= 24;
    if (ratio < (large ? 3 : 4.5)) poor.push(`${ratio.toFixed(2)} ${element.outerHTML.slice(0, 120)}`);
  }
  return poor;
}"""


def poor_contrasts(page: Any) -> list[str]:
    """List visible texts with a contrast below WCAG 2 AA (4.5; large text: 3), each with its ratio."""
    return page.evaluate(CONTRAST)


def overflow(page: Any) -> int:
    """Return the CSS pixels by which the page is wider than its window."""
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


OVERLAPS = """() => {
  const boxes = [], range = document.createRange();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode()); ) {
    const parent = node.parentElement;
    if (!node.textContent.trim() || parent.closest("script, style, option, .hidden-text")) continue;
    if (!parent.checkVisibility({ visibilityProperty: true })) continue;
    range.selectNodeContents(node);
    for (const { left, top, right, bottom } of range.getClientRects()) {
      const box = { left, top, right, bottom, node };
      for (let at = parent; at && at !== document.body; at = at.parentElement) {
        if (at instanceof SVGElement || getComputedStyle(at).overflow === "visible") continue;
        const clip = at.getBoundingClientRect();
        box.left = Math.max(box.left, clip.left);
        box.right = Math.min(box.right, clip.right);
        box.top = Math.max(box.top, clip.top);
        box.bottom = Math.min(box.bottom, clip.bottom);
      }
      if (box.right > box.left && box.bottom > box.top) boxes.push(box);
    }
  }
  boxes.sort((a, b) => a.top - b.top);
  const overlaps = [];
  boxes.forEach((a, index) => {
    for (const b of boxes.slice(index + 1)) {
      const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const height = Math.min(a.bottom, b.bottom) - b.top;
      if (height <= 0) break;
      if (a.node !== b.node && width > 1 && height > 4) overlaps.push([a.node.textContent, b.node.textContent]);
    }
  });
  return overlaps;
}"""


def overlapping_texts(page: Any) -> list[list[str]]:
    """List pairs of visible texts that are drawn over each other; the boxes of neighbouring lines may touch."""
    return page.evaluate(OVERLAPS)


def shown_error(page: Any) -> str:
    """Wait until the page shows an error, and return its text."""
    page.wait_for_selector("#error:not([hidden])")
    text: str = page.locator("#error").inner_text()
    return text
