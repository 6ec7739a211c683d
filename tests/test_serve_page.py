"""The demo in a real browser: a file, an example and the microphone are transcribed."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr.apps.serve.pages import ExampleAudio, demo_page
from asr.apps.serve.upload import Limits
from asr.core.data.manifest import Utterance, read_manifest
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
from tests.media import needs_media
from tests.serving import Server, serving


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser whose microphone beeps."""
    yield from launched(*SIMULATED_MICROPHONE)


@pytest.fixture(scope="module")
def utterance(fluent: Path) -> Utterance:
    """An utterance of at least three words that the model recognises correctly."""
    return next(candidate for candidate in read_manifest(fluent / "test.jsonl") if len(candidate.text.split()) >= 3)


@pytest.fixture(scope="module")
def recording(utterance: Utterance) -> Path:
    return Path(utterance.audio_filepath)


@pytest.fixture(scope="module")
def text(utterance: Utterance) -> str:
    return utterance.text


@pytest.fixture(scope="module")
def server(fluent: Path, recording: Path) -> Iterator[Server]:
    with serving(fluent / "run", "--example", recording, "--max-megabytes", "5") as running:
        yield running


@pytest.fixture
def seen(chromium: Any, server: Server) -> Iterator[Visit]:
    """The opened page; at the end the console must have no errors, and no other host may have been requested."""
    with visiting(chromium, server.address + "/") as seen:
        yield seen
    others = [request for request in seen.requests if not request.startswith((server.address, "blob:", "data:"))]
    assert others == []


def transcript(page: Any) -> str:
    page.wait_for_selector("#result:not([hidden])")
    text: str = page.locator("#text").inner_text()
    return " ".join(text.split())


def test_a_file_is_transcribed_with_word_times(seen: Visit, server: Server, recording: Path, text: str) -> None:
    seen.page.set_input_files("#file", recording)
    assert transcript(seen.page) == text
    words = server.post(recording.read_bytes()).json()["words"]
    rows = seen.page.locator("#words tbody tr")
    assert rows.count() == len(words)
    for row, word in zip(rows.all(), words, strict=True):
        cells = [cell.strip() for cell in row.locator("td").all_text_contents()]
        percent = f"{int(100 * word['confidence'] + 0.5)} %"
        assert cells == [word["text"], f"{word['start']:.2f}", f"{word['end']:.2f}", percent]
    assert f"{recording.name}: " in seen.page.locator("#summary").inner_text()


@needs_media
def test_what_the_browsers_own_recorder_writes_is_transcribed(
    seen: Visit, recording: Path, text: str, tmp_path: Path
) -> None:
    record = """async encoded => {
        const bytes = Uint8Array.from(atob(encoded), letter => letter.charCodeAt(0));
        const context = new AudioContext(), target = context.createMediaStreamDestination();
        const source = new AudioBufferSourceNode(context, {buffer: await context.decodeAudioData(bytes.buffer)});
        const silence = new ConstantSourceNode(context, {offset: 1e-6});  // keeps the stream running
        for (const node of [source, silence]) node.connect(target);
        silence.start();
        const recorder = new MediaRecorder(target.stream, {mimeType: "audio/webm"}), parts = [];
        recorder.ondataavailable = event => parts.push(event.data);
        const stopped = new Promise(resolve => recorder.onstop = resolve);
        source.onended = () => setTimeout(() => recorder.stop(), 300);
        recorder.start(100);
        source.start(context.currentTime + 0.3);
        await stopped;
        const content = new Uint8Array(await new Blob(parts).arrayBuffer());
        return btoa(Array.from(content, number => String.fromCharCode(number)).join(""));
    }"""
    content = base64.b64decode(seen.page.evaluate(record, base64.b64encode(recording.read_bytes()).decode()))
    (tmp_path / "recorded.webm").write_bytes(content)
    seen.page.set_input_files("#file", tmp_path / "recorded.webm")
    assert transcript(seen.page) == text


def test_a_click_transcribes_an_example_and_a_click_on_a_word_moves_to_it(seen: Visit, text: str) -> None:
    seen.page.get_by_role("button", name="Example").click()
    assert transcript(seen.page) == text
    start = float(seen.page.locator("#words tbody tr").nth(1).locator("td").nth(1).text_content())
    moment = "document.querySelector('#player audio').currentTime"
    assert seen.page.evaluate(moment) < start
    seen.page.locator("#text .word").nth(1).click()
    wait_until(seen.page, f"{moment} >= {start - 0.02}")
    assert seen.page.evaluate(moment) < start + 1
    seen.page.wait_for_selector("#text .word.now")


def test_the_player_shows_the_words_and_the_waveform(seen: Visit, recording: Path, text: str) -> None:
    seen.page.set_input_files("#file", recording)
    transcript(seen.page)
    assert seen.page.locator("#player .timeline-words button").all_text_contents() == text.split()
    drawn = "(() => { const c = document.querySelector('#player canvas');"
    drawn += "return c.width && c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x); })()"
    wait_until(seen.page, drawn)


def test_the_player_stays_visible_and_a_long_text_scrolls_to_the_current_word(
    seen: Visit, recording: Path, tmp_path: Path
) -> None:
    content, rate = soundfile.read(recording)
    soundfile.write(tmp_path / "long.flac", np.tile(content, 60), rate)
    seen.page.set_viewport_size({"width": 380, "height": 800})
    seen.page.set_input_files("#file", tmp_path / "long.flac")
    assert len(transcript(seen.page).split()) > 100
    wait_until(seen.page, "document.querySelector('#player').getBoundingClientRect().bottom < innerHeight")
    assert seen.page.evaluate("document.querySelector('#text').scrollTop") == 0
    seen.page.locator("#player .timeline-words button").last.click()
    wait_until(seen.page, "document.querySelector('#text').scrollTop > 100")


def test_the_downloaded_json_is_the_answer_of_the_server(seen: Visit, server: Server, recording: Path) -> None:
    seen.page.set_input_files("#file", recording)
    transcript(seen.page)
    with seen.page.expect_download() as download:
        seen.page.get_by_role("link", name="Download JSON").click()
    assert (
        json.loads(Path(download.value.path()).read_text())
        == server.post(recording.read_bytes(), recording.name).json()
    )


def test_the_text_can_be_copied(chromium: Any, server: Server, recording: Path, text: str) -> None:
    seen = visit(chromium, server.address + "/")
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen.page.set_input_files("#file", recording)
    transcript(seen.page)
    seen.page.get_by_role("button", name="Copy text").click()
    seen.page.get_by_role("button", name="Copied").wait_for()
    assert seen.page.evaluate("navigator.clipboard.readText()") == text
    seen.page.context.close()


def test_the_microphone_is_recorded_as_wav(seen: Visit) -> None:
    with seen.page.expect_request("**/transcribe") as sent:
        seen.page.get_by_role("button", name="Record").click()
        seen.page.get_by_role("button", name=re.compile(r"Stop \([1-9]")).click()
    transcript(seen.page)
    seconds = re.search(r"microphone.wav: (\d+\.\d) s", seen.page.locator("#summary").inner_text())
    assert seconds
    assert 1 <= float(seconds[1]) < 10
    assert sent.value.method == "POST"
    assert seen.page.get_by_role("button", name="Record").is_enabled()


def test_a_recording_ends_before_it_is_too_large_to_send(chromium: Any, fluent: Path) -> None:
    with serving(fluent / "run", "--max-megabytes", "0.2") as server:  # enough for two seconds
        seen = visit(chromium, server.address + "/")
        seen.page.get_by_role("button", name="Record").click()
        transcript(seen.page)
        assert float(seen.page.locator("#summary").inner_text().split()[1]) > 1
        assert seen.page.locator("#hint").inner_text() == ""
        seen.page.context.close()


def test_a_forbidden_microphone_is_explained(chromium: Any, server: Server) -> None:
    seen = visit(chromium, server.address + "/")
    seen.page.evaluate(
        "() => { navigator.mediaDevices.getUserMedia = "
        "() => Promise.reject(new DOMException('no', 'NotAllowedError')); }"
    )
    seen.page.get_by_role("button", name="Record").click()
    assert "not allowed to use the microphone" in shown_error(seen.page)
    seen.page.context.close()


def test_an_insecure_page_disables_recording_and_gives_the_reason(chromium: Any, server: Server) -> None:
    context = chromium.new_context()
    context.add_init_script("Object.defineProperty(window, 'isSecureContext', { value: false })")
    page = context.new_page()
    page.goto(server.address + "/")
    assert page.get_by_role("button", name="Record").is_disabled()
    assert "only over https, or on this machine" in page.locator("#hint").inner_text()
    context.close()


def test_errors_are_shown_and_the_next_file_is_accepted(
    chromium: Any, server: Server, recording: Path, tmp_path: Path, text: str
) -> None:
    seen = visit(chromium, server.address + "/")
    (tmp_path / "<b>text.wav").write_text("not audio")
    seen.page.set_input_files("#file", tmp_path / "<b>text.wav")
    assert re.match("<b>text.wav: .*libsndfile .*Format not recognised", shown_error(seen.page))
    (tmp_path / "large.wav").write_bytes(bytes(6_000_000))
    seen.page.set_input_files("#file", tmp_path / "large.wav")
    assert re.search(r"\b5 megabytes.* 6\.0", shown_error(seen.page))
    seen.page.set_input_files("#file", recording)
    assert transcript(seen.page) == text
    assert seen.page.locator("#error").is_hidden()
    seen.page.context.close()


def test_a_stopped_server_is_reported(chromium: Any, fluent: Path, recording: Path) -> None:
    with serving(fluent / "run") as server:
        seen = visit(chromium, server.address + "/")
        assert seen.page.get_by_role("button", name="Example").count() == 0
        server.stop()
        seen.page.set_input_files("#file", recording)
        assert "cannot be reached" in shown_error(seen.page)
        seen.page.context.close()


def test_one_file_can_be_dropped_but_not_two(seen: Visit, recording: Path, text: str) -> None:
    drop = """([base64, count]) => {
      const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0)), data = new DataTransfer();
      for (let i = 0; i < count; i++) data.items.add(new File([bytes], `dropped-${i}.wav`));
      return document.getElementById("drop").dispatchEvent(
        new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }"""
    content = base64.b64encode(recording.read_bytes()).decode()
    assert seen.page.evaluate(drop, [content, 2]) is False, "otherwise the browser leaves the page and opens the file"
    assert "one recording at a time; got 2 files" in shown_error(seen.page)
    seen.page.evaluate(drop, [content, 1])
    assert transcript(seen.page) == text


def test_the_page_can_be_used_with_the_keyboard_alone(seen: Visit, text: str) -> None:
    focused = "document.activeElement.id || document.activeElement.textContent.trim()"
    reached = []
    for _ in range(7):
        seen.page.keyboard.press("Tab")
        reached.append(seen.page.evaluate(focused))
        if reached[-1] == "Example":
            break
    assert reached == ["the endpoint", "file", "record", "caption", "Example"]
    seen.page.keyboard.press("Enter")
    assert transcript(seen.page) == text
    assert seen.page.evaluate(focused) == "result-title"
    for _ in range(12):
        seen.page.keyboard.press("Tab")
        if seen.page.evaluate(focused) == text.split()[0]:
            break
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("Enter")
    wait_until(seen.page, "document.querySelector('#player audio').currentTime > 0.3")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1280])
def test_the_page_is_readable_on_phone_and_desktop(chromium: Any, server: Server, width: int, scheme: str) -> None:
    seen = visit(chromium, server.address + "/", width, 800, scheme)
    seen.page.emulate_media(reduced_motion="reduce")  # colours cannot be measured during a transition
    assert poor_contrasts(seen.page) == []
    seen.page.get_by_role("button", name="Example").click()
    transcript(seen.page)
    seen.page.locator("#words summary").click()
    assert poor_contrasts(seen.page) == []
    assert overflow(seen.page) <= 0
    seen.page.context.close()


def test_the_page_of_endpoints_needs_no_other_host(chromium: Any, server: Server) -> None:
    seen = visit(chromium, server.address + "/docs")
    seen.page.get_by_role("button", name="POST /transcribe Recognise").click()
    seen.page.get_by_text("one recording: WAV, FLAC").wait_for()
    assert seen.complaints == []
    assert all(request.startswith((server.address, "data:")) for request in seen.requests)
    seen.page.context.close()


def test_the_pages_load_nothing_from_other_hosts_and_cannot_be_framed(server: Server) -> None:
    for path in ("/", "/docs"):
        policy = server.get(path).headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert not re.search(r"https?:|\*", policy)


def test_malicious_names_are_displayed_as_text() -> None:
    hostile = "</script><script>alert(1)</script>\"'"
    page = demo_page(hostile, Limits(1, 1.0, 1.0), (ExampleAudio(hostile, Path("x")), ExampleAudio("b", Path("y"))))
    assert "<script>alert" not in page
    assert page.count("<script") == page.count("</script>")
