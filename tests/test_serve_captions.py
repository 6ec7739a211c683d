"""Captions in a real browser: a microphone that plays a file is captioned live, and errors are shown."""

import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from tests.browser import (
    SIMULATED_MICROPHONE,
    Visit,
    launched,
    overflow,
    poor_contrasts,
    shown_error,
    visit,
    visiting,
    wait_until,
)
from tests.conftest import PATIENCE
from tests.live import live_process
from tests.serving import Server
from tests.tones import SAMPLE_RATE, sentences, speak

pytestmark = pytest.mark.slow

START, STOP = "Captions", "Stop captions"
TEXTS = sentences(3, seed=4, words=(3, 5))


def microphone(folder: Path, how: str = "") -> Iterator[Any]:
    """A browser whose microphone plays sentences with pauses, repeatedly."""
    pause = np.zeros(SAMPLE_RATE, dtype=np.float32)
    samples = np.concatenate([part for text in TEXTS for part in (pause, speak(text))])
    soundfile.write(folder / "said.wav", samples, SAMPLE_RATE)
    yield from launched(*SIMULATED_MICROPHONE, f"--use-file-for-fake-audio-capture={folder / 'said.wav'}{how}")


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from microphone(tmp_path_factory.mktemp("microphone"))


@pytest.fixture
def chromium_of_few_words(tmp_path: Path) -> Iterator[Any]:
    """A browser whose microphone plays the sentences once, followed by silence."""
    yield from microphone(tmp_path, "%noloop")


def serving(most: int = 1) -> AbstractContextManager[Server]:
    """A server with a hand-written recogniser of tones, which recognises the last seconds again at short intervals."""
    return live_process("tests.listener.listener()", most)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


@pytest.fixture
def seen(chromium: Any, server: Server) -> Iterator[Visit]:
    with visiting(chromium, server.address + "/") as seen:
        yield seen


def button(page: Any, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


def words(page: Any) -> list[str]:
    text: str = page.locator("#lines").inner_text()
    return text.split()


def test_words_are_shown_while_they_are_spoken_and_become_final(chromium_of_few_words: Any, server: Server) -> None:
    seen = visit(chromium_of_few_words, server.address + "/")
    page = seen.page
    button(page, START).click()
    page.wait_for_selector("#live-note:not([hidden])")
    note = page.locator("#live-note").inner_text()
    assert note.startswith("This model takes longer: at least the last 8 s are recognised again every 0.96 s, because ")
    spoken_words = " ".join(TEXTS).split()
    first: dict[int, str] = {}  # number of shown words -> the partial words when that number was first seen
    end = time.monotonic() + PATIENCE
    page.wait_for_selector("#lines .partial", state="attached")
    while len(shown := words(page)) < len(spoken_words) or page.locator("#lines .partial").inner_text():
        assert time.monotonic() < end, shown
        first.setdefault(len(shown), page.locator("#lines .partial").inner_text())
        page.wait_for_timeout(100)
        assert button(page, STOP).is_visible()
    assert len([number for number, partial in first.items() if number and partial]) > 1, (
        "words were not shown one after another"
    )
    page.emulate_media(reduced_motion="reduce")
    assert poor_contrasts(page) == []
    button(page, STOP).click()
    button(page, START).wait_for()
    assert words(page) == spoken_words
    assert page.locator("#lines .partial").inner_text() == ""
    assert re.match(r"Latency: words appear \d+\.\d+ s after", page.locator("#latency").inner_text())
    assert page.locator("#error").is_hidden()
    assert overflow(page) <= 0
    server.wait_for_log(r"stream of \d+\.\d s: ended$")
    assert seen.complaints == []


def test_a_busy_server_is_reported_and_accepts_the_next_client(seen: Visit, chromium: Any, server: Server) -> None:
    other = visit(chromium, server.address + "/")
    button(other.page, START).click()
    button(other.page, STOP).wait_for()
    wait_until(other.page, "document.querySelector('#hint').textContent.startsWith('Listening')")
    button(seen.page, START).click()
    assert "The server is busy: the maximum number of streams (1) is open" in shown_error(seen.page)
    assert button(seen.page, START).is_enabled()
    assert seen.page.locator("#live").is_hidden()
    other.page.context.close()
    server.wait_for_log("stream of .* s: the client disconnected")
    button(seen.page, START).click()
    wait_until(seen.page, "document.querySelector('#hint').textContent.startsWith('Listening')")
    assert seen.page.locator("#error").is_hidden()
    button(seen.page, STOP).click()
    button(seen.page, START).wait_for()


def test_the_microphone_is_used_for_captions_or_for_a_recording_but_not_for_both(seen: Visit) -> None:
    button(seen.page, START).click()
    wait_until(seen.page, "document.querySelector('#hint').textContent.startsWith('Listening')")
    assert button(seen.page, "Record").is_disabled()
    button(seen.page, STOP).click()
    button(seen.page, START).wait_for()
    button(seen.page, "Record").click()
    seen.page.get_by_role("button", name=re.compile(r"Stop \(")).wait_for()
    assert button(seen.page, START).is_disabled()
    seen.page.get_by_role("button", name=re.compile(r"Stop \(")).click()
    button(seen.page, "Record").wait_for()
    assert button(seen.page, START).is_enabled()


def test_captions_do_not_disturb_a_transcription(seen: Visit, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "said.wav", speak(TEXTS[0]), SAMPLE_RATE)
    answers: list[Any] = []

    def keep(route: Any) -> None:
        answers.append(route)

    seen.page.route("**/transcribe", keep)
    seen.page.set_input_files("#file", tmp_path / "said.wav")
    button(seen.page, "Cancel").wait_for()
    refuse = "() => Promise.reject(new DOMException('no', 'NotFoundError'))"
    seen.page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = {refuse}; }}")
    button(seen.page, START).click()
    assert "There is no microphone." in shown_error(seen.page)
    assert button(seen.page, "Cancel").is_visible()
    seen.page.evaluate("() => { delete navigator.mediaDevices.getUserMedia; }")  # restores the browser's own function
    button(seen.page, START).click()
    wait_until(seen.page, "document.querySelector('#hint').textContent.startsWith('Listening')")
    answers[0].continue_()
    seen.page.wait_for_selector("#result:not([hidden])")
    assert seen.page.locator("#text").inner_text().strip() == TEXTS[0]
    assert button(seen.page, STOP).is_visible()
    button(seen.page, STOP).click()
    button(seen.page, START).wait_for()
    assert seen.page.locator("#result").is_visible()


def test_a_lost_connection_is_reported_and_words_remain(chromium: Any) -> None:
    with serving() as server:
        seen = visit(chromium, server.address + "/")
        button(seen.page, START).click()
        wait_until(seen.page, "document.querySelector('#lines').textContent.trim().length > 3", PATIENCE)
        server.process.kill()
        assert shown_error(seen.page).endswith("The connection to the server was lost.")
        assert words(seen.page)
        button(seen.page, START).click()
        assert "The server cannot be reached" in shown_error(seen.page)
        seen.page.context.close()


def test_a_stopping_server_is_reported(chromium: Any) -> None:
    with serving() as server:
        seen = visit(chromium, server.address + "/")
        button(seen.page, START).click()
        wait_until(seen.page, "document.querySelector('#lines').textContent.trim().length > 3", PATIENCE)
        assert server.stop() == 0
        assert "The server is stopping." in shown_error(seen.page)
        seen.page.context.close()


@pytest.mark.parametrize(
    ("name", "message"),
    [("NotAllowedError", "was not allowed to use the microphone"), ("NotFoundError", "There is no microphone.")],
)
def test_an_unavailable_microphone_is_explained(seen: Visit, name: str, message: str) -> None:
    refuse = f"() => Promise.reject(new DOMException('no', '{name}'))"
    seen.page.evaluate(f"() => {{ navigator.mediaDevices.getUserMedia = {refuse}; }}")
    button(seen.page, START).click()
    assert message in shown_error(seen.page)
    assert button(seen.page, START).is_enabled()
    assert button(seen.page, "Record").is_enabled()
