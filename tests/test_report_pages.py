"""Robustness of reports: malicious names and texts, thousands of utterances, missing recordings."""

import base64
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from asr.apps.doctor.finding import Case, Finding, Severity
from asr.apps.doctor.page import diagnosis_page
from asr.apps.report.comparison import comparison_report
from asr.apps.report.evaluation import About, attached, evaluation_report
from asr.apps.web.clips import (
    NO_CLIPS,
    OPUS_RATES,
    TOP,
    Clips,
    base64_bytes,
    features_in_parts,
    levels,
    opus,
    record,
    record_with_features,
)
from asr.apps.web.figures import figure
from asr.apps.web.page import asset, escape, page, to_json, visible
from asr.apps.web.utterances import SCRIPTS
from asr.base.audio.load import load_waveform
from asr.base.system import files
from asr.compare import main as compare
from asr.core.checkpoint.load import load_recognizer
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.evaluation.analysis import figures
from asr.core.evaluation.comparison import compare as compared
from asr.core.evaluation.utterances import Scored
from asr.core.recognition.recognizer import Recognizer
from asr.errors import InputError
from asr.evaluate import main as evaluate
from tests.browser import browser, overflow, overlapping_texts, visit, wait_until  # noqa: F401
from tests.conftest import ROOT
from tests.refusals import refused
from tests.scoring import scored, simulated
from tests.tones import SAMPLE_RATE, speak

HOSTILE = [
    "</script><script>document.title='broken out'</script>",
    "<img src=x onerror=\"document.title='broken out'\">",
    "\"'><svg/onload=document.title='broken-out'>",
    "<!--<script>",
    "bytes \udcff\udc80 that are not UTF-8",
    "مرحبا بالعالم",
    "שלום עולם abc",
    "cafe\u0301 \U0001f600 \u202eright to left",
    "x" * 10_000,
    "line\nbreak\ttab \u2028 separator",
    "&lt;b&gt; {{7*7}} ${7*7}",
    "",
]


def hostile() -> list[Scored]:
    """Return utterances whose id, speaker, subset and texts try to break the page."""
    utterances = []
    for place, text in enumerate(HOSTILE):
        hypothesis = HOSTILE[(place + 1) % len(HOSTILE)]
        speaker, subset = HOSTILE[(place + 2) % len(HOSTILE)], HOSTILE[place % 3]
        utterances.append(scored(text, hypothesis, name=f"{place} {text}", subset=subset, speaker=speaker, text=text))
    return utterances


def save(folder: Path, text: str) -> Path:
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    return path


def report_of(utterances: list[Scored], clips: Clips = NO_CLIPS, about: About | None = None) -> str:
    return evaluation_report(utterances, about or About("Title", [("Model", "m")]), clips)


@pytest.mark.parametrize(
    ("few", "many", "note"),
    [
        (0, 2, "for each"),
        (3, 2, "for the 2 of 5 with 5 utterances or more"),
        (40, 1, "for the 1 of 41 with 5 utterances or more. Names are under Values"),
    ],
)
def test_a_note_states_which_speakers_have_an_interval_and_where_their_names_are(
    few: int, many: int, note: str
) -> None:
    speakers = [f"few {number}" for number in range(few)] + [f"many {number}" for number in range(many)] * 5
    utterances = [scored("one two", "one", name=str(place), speaker=speaker) for place, speaker in enumerate(speakers)]
    assert f"WER of each speaker; 95 % intervals over utterances {note}<" in report_of(utterances)


@pytest.mark.parametrize("width", [380, 1400])
def test_malicious_names_and_texts_are_displayed_as_text(width: int, browser: Any, tmp_path: Path) -> None:  # noqa: F811
    utterances = hostile()
    about = About(HOSTILE[0], [(HOSTILE[1], HOSTILE[2])], [HOSTILE[3], HOSTILE[0]])
    clips = replace(NO_CLIPS, problems={0: HOSTILE[0]})
    seen = visit(browser, save(tmp_path, report_of(utterances, clips, about)), width=width)
    tab = seen.page
    assert tab.title() == HOSTILE[0]
    assert tab.evaluate("document.querySelectorAll('img, svg[onload]').length") == 0
    assert tab.evaluate("document.querySelectorAll('script').length") == len(SCRIPTS) + 2  # + data and scrollable.js
    for row in utterances:
        address = "(row) => { location.hash = new URLSearchParams({utterance: row[0], subset: row[1]}); }"
        tab.evaluate(address, [visible(row.utterance.id), visible(row.subset)])
        wait_until(tab, f"document.querySelector('dialog h2')?.textContent === {to_json(visible(row.utterance.id))}")
        words = tab.locator(".alignment .column:not(.names) .cell:nth-child(2) button").all_text_contents()
        assert words == [visible(word) for word in row.transcript.text.split()]
        assert overflow(tab) <= 0
        assert tab.evaluate(
            "document.querySelector('dialog').scrollWidth <= document.querySelector('dialog').clientWidth"
        )
    tab.keyboard.press("Escape")
    tab.fill("[name=search]", "\\udcff")
    assert tab.locator("#utterances tr[data-index]").count() == 2, "a name can be searched as it is displayed"
    assert tab.title() == HOSTILE[0]
    assert overflow(tab) <= 0
    assert seen.complaints == []
    assert [request for request in seen.requests if not request.startswith(("file:", "blob:", "data:"))] == []
    tab.context.close()


def test_malicious_texts_in_a_comparison_are_displayed_as_text(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    a = hostile()
    b = [
        scored(
            row.reference,
            HOSTILE[(place + 5) % len(HOSTILE)],
            name=row.utterance.id,
            subset=row.subset,
            speaker=row.utterance.speaker,
        )
        for place, row in enumerate(a)
    ]
    html = comparison_report(a, b, compared(a, b), About(HOSTILE[0], [("A", HOSTILE[1])]), NO_CLIPS)
    seen = visit(browser, save(tmp_path, html))
    assert seen.page.title() == HOSTILE[0]
    assert (
        seen.page.evaluate("document.querySelectorAll('script').length") == len(SCRIPTS) + 2
    )  # + data and scrollable.js
    assert overflow(seen.page) <= 0
    assert seen.complaints == []
    seen.page.context.close()


def test_right_to_left_text_is_displayed_from_right_to_left(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    utterances = [scored("שלום עולם יפה", "שלום עולם", name="hebrew")]
    seen = visit(browser, f"{save(tmp_path, report_of(utterances)).as_uri()}#utterance=hebrew")
    wait_until(seen.page, "document.querySelector('dialog[open]') !== null")
    boxes = [column.bounding_box() for column in seen.page.locator(".alignment .column:not(.names)").all()]
    assert boxes[0]["x"] > boxes[1]["x"] > boxes[2]["x"]
    seen.page.context.close()


def test_a_page_executes_only_its_own_script_and_loads_no_other_file(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    requests: list[object] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = f"http://127.0.0.1:{server.server_port}"
        body = "<p>x</p><script>document.title = 'ran'</script><img src=x onerror=\"document.title = 'ran'\">"
        body += (
            f'<img src="{there}/x.png"><link rel="stylesheet" href="{there}/x.css"><script src="{there}/x.js"></script>'
        )
        seen = visit(browser, save(tmp_path, page("title", body)))
        assert seen.page.title() == "title"
        assert len([complaint for complaint in seen.complaints if "Content Security Policy" in complaint]) >= 5
        seen.page.context.close()
        server.shutdown()
    assert requests == []


@pytest.mark.parametrize("width", [1280, 900])
def test_the_figures_at_the_top_of_a_page_have_no_last_row_of_one(
    width: int,
    browser: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    counts = range(2, 9)
    headlines = (
        "".join(figure(f"name{index}", f"Figure {index}", f"{index:,}", []) for index in range(count))
        for count in counts
    )
    body = "".join(f'<div class="headline">{tiles}</div>' for tiles in headlines)
    seen = visit(browser, save(tmp_path, page("title", f"<main>{body}</main>")), width)
    script = "divs => divs.map(div => [...div.querySelectorAll('.figure')].map(each => each.offsetTop))"
    for count, tops in zip(counts, seen.page.eval_on_selector_all(".headline", script), strict=True):
        rows = [tops.count(top) for top in sorted(set(tops))]
        assert rows[-1] > 1 or rows == [1] * count, (count, rows)
    seen.page.context.close()


@pytest.mark.parametrize("width", [1440, 1280, 1100, 1024, 768, 390])
def test_figures_of_any_length_do_not_cover_other_texts(width: int, browser: Any, tmp_path: Path) -> None:  # noqa: F811
    values = ["100.00 %", "about 11.9 h", "1,234,567", "111 h 7 min", "about 2,486,421 h", "+100.00", "12", "9" * 30]
    label = "WER, librispeech_test-other"
    headlines = (
        "".join(
            figure("name", label, value, ["99.00 to 101.00 % over utterances"], main=not index, unit="points")
            for index, value in enumerate(values[:count])
        )
        for count in range(1, len(values) + 1)
    )
    body = "".join(f'<div class="headline">{tiles}</div><p>Text below.</p>' for tiles in headlines)
    seen = visit(browser, save(tmp_path, page("title", f"<main>{body}</main>")), width)
    assert overlapping_texts(seen.page) == []
    assert overflow(seen.page) <= 0
    seen.page.context.close()


def test_long_ids_break_only_at_separators(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    """Each part of an id between underscores is on one line, at 1280 pixels, beside a long text."""
    names = [f"corpus_train_{number:05d}_recording-of-a-speaker_utterance" for number in range(3)]
    utterances = [Utterance("a.wav", 2.0, "many words of a text " * 8, name) for name in names]
    cases = [Case("train", utterance, f"like train: {utterance.id}") for utterance in utterances]
    finding = Finding("equal audio", Severity.WARNING, "3 utterances.", "Keep one.", cases)
    seen = visit(browser, save(tmp_path, diagnosis_page("corpus", "0 errors", [finding], [])), 1280)
    script = """cells => cells.map(cell => {
        const range = document.createRange(), texts = [...cell.childNodes].filter(node => node.nodeType === 3)
        return texts.every(text => { range.selectNodeContents(text); return range.getClientRects().length === 1 })
    })"""
    assert seen.page.eval_on_selector_all("tbody td:nth-child(2) bdi", script) == [True] * len(names)


def test_data_in_a_page_is_read_back_unchanged(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    given = {"texts": [visible(text) for text in HOSTILE], "number": 1.5, "nothing": None, "<!--<script>": "</script>"}
    seen = visit(browser, save(tmp_path, page("title", "", data={"data": given})))
    assert seen.page.evaluate("JSON.parse(document.getElementById('data').textContent)") == given
    seen.page.context.close()
    with pytest.raises(ValueError, match="not JSON compliant"):
        page("title", "", data={"data": float("nan")})


def test_scripts_of_pages_can_be_inlined_and_contain_no_unsafe_code(tmp_path: Path) -> None:
    for path in (ROOT / "asr" / "apps" / "web" / "assets").glob("*.js"):
        assert "</script" not in asset(path.name).lower()
        assert not re.search(r"\bon\w+=[\"']|https?://|\beval\b|innerHTML", asset(path.name)), path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 5,000 utterances."""
    return save(tmp_path_factory.mktemp("large"), report_of(simulated(5000, 1)))


def test_five_thousand_utterances_are_searched_and_only_the_visible_rows_are_drawn(
    browser: Any,  # noqa: F811
    large: Path,
) -> None:
    seen = visit(browser, large)
    for column in range(8):
        seen.page.evaluate(f"document.querySelectorAll('#utterances th button')[{column}].click()")
    search = "const box = document.querySelector('[name=search]'); box.value = 'three four';"
    search += "box.dispatchEvent(new Event('input', {bubbles: true}))"
    seen.page.evaluate(search)
    assert re.match(r"\d{3} of 5,000 utterances", seen.page.locator("#found").inner_text())
    assert seen.page.locator("#utterances tr").count() < 60, "only visible rows are drawn"
    seen.page.context.close()


@pytest.mark.parametrize(
    ("count", "expected_note"), [(30, ""), (5000, "The first 400 of 5,000 rows; the screen shows all.")]
)
def test_at_most_400_rows_are_printed_and_a_note_states_how_many_there_are(
    count: int,
    expected_note: str,
    browser: Any,  # noqa: F811
    large: Path,
    tmp_path: Path,
) -> None:
    seen = visit(browser, large if count == 5000 else save(tmp_path, report_of(simulated(count, 1))))
    note = seen.page.locator(".print-only")
    assert not note.is_visible()
    seen.page.emulate_media(media="print")
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert note.inner_text() == expected_note
    rows = seen.page.locator("#utterances tr[data-index]")
    assert rows.count() == min(count, 400)
    last, table = rows.last.bounding_box(), seen.page.locator("#utterances table").bounding_box()
    assert table["y"] + table["height"] == pytest.approx(last["y"] + last["height"], abs=2)
    seen.page.context.close()


def test_an_address_of_an_unknown_utterance_is_reported(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    seen = visit(browser, f"{save(tmp_path, report_of([scored('one', 'two')])).as_uri()}#utterance=gone")
    wait_until(seen.page, "document.readyState === 'complete'")
    assert seen.page.locator("#found").inner_text() == "There is no utterance gone in this page."
    seen.page.context.close()


def test_rows_follow_the_scroll_bar_to_the_last_row(browser: Any, large: Path) -> None:  # noqa: F811
    seen = visit(browser, large)
    seen.page.locator("#utterances th", has_text="Utterance").locator("button").click()
    seen.page.evaluate(
        "(() => { const rows = document.querySelector('.rows'); rows.scrollTop = rows.scrollHeight; })()"
    )
    wait_until(seen.page, "document.querySelector('.rows').textContent.includes('utterance-4999')")
    last = seen.page.locator("#utterances tr[data-index]").last
    assert last.locator("a").inner_text() == "utterance-4999"
    box, frame = last.bounding_box(), seen.page.locator(".rows").bounding_box()
    assert box["y"] + box["height"] <= frame["y"] + frame["height"] + 1
    seen.page.context.close()


@pytest.mark.parametrize(
    "utterances",
    [
        [scored("", "")],
        [scored("", "word")],
        [scored("word", "")],
        [scored("one two", "one two", speaker="a")],
    ],
    ids=["empty texts", "empty reference", "empty hypothesis", "no errors"],
)
def test_an_almost_empty_evaluation_gives_a_page(utterances: list[Scored], browser: Any, tmp_path: Path) -> None:  # noqa: F811
    seen = visit(browser, save(tmp_path, report_of(utterances)))
    rate = figures(utterances)["words"]["rate"]
    assert seen.page.locator("[data-figure=wer]").inner_text() == ("-" if rate is None else f"{100 * rate:.2f} %")
    assert seen.page.locator("#utterances tr[data-index]").count() == 1
    seen.page.locator("#utterances a").click()
    seen.page.locator("dialog", has_text="This page has no recording of this utterance").wait_for()
    assert seen.complaints == []
    seen.page.context.close()


# Recordings


def tone(folder: Path, name: str, seconds: float, errors: int = 0) -> Utterance:
    path = folder / f"{name}.flac"
    waveform = speak("abcdef" * round(seconds / 0.96 + 1))[: round(seconds * SAMPLE_RATE)]
    soundfile.write(path, waveform, SAMPLE_RATE)
    return Utterance(str(path), seconds, "", name)


def test_recordings_fill_the_budget_in_the_requested_order(tmp_path: Path) -> None:
    utterances = [tone(tmp_path, name, seconds) for name, seconds in (("a", 2.0), ("b", 9.0), ("c", 2.0), ("d", 2.0))]
    everything = record(utterances, range(4), 1e9)
    sizes = {place: base64_bytes(len(content)) for place, content in everything.audio.items()}
    assert sorted(sizes) == [0, 1, 2, 3]
    assert list(record(utterances, [2, 0, 3], sizes[2] + sizes[0]).audio) == [2, 0]
    assert list(record(utterances, [1, 3], sizes[1] - 1).audio) == [3], "a recording that is too large is skipped"
    hiss = replace(utterances[0], audio_filepath=str(tmp_path / "hiss.wav"))  # hiss needs more bytes than speech
    soundfile.write(hiss.audio_filepath, 0.1 * torch.randn(2 * SAMPLE_RATE).numpy(), SAMPLE_RATE)
    [content] = record([hiss], [0], 1e9).audio.values()
    assert record([hiss], [0], base64_bytes(len(content)) - 1).audio == {}
    assert record(utterances, range(4), 0).audio == {}


def test_the_recording_in_a_page_is_the_audio_of_the_utterance(tmp_path: Path) -> None:
    long = tone(tmp_path, "long", 3.0)
    segment = replace(long, offset=1.0, duration=1.5)
    [content] = record([segment], [0], 1e9).audio.values()
    path = tmp_path / "clip.ogg"
    path.write_bytes(content)
    clip, meant = load_waveform(path, SAMPLE_RATE), load_waveform(long.audio_filepath, SAMPLE_RATE)[16000:40000]
    assert len(clip) == len(meant)
    assert float((clip - meant).pow(2).mean()) < 0.02 * float(meant.pow(2).mean()), "Opus removes inaudible parts"


@pytest.mark.parametrize("rate", OPUS_RATES)
def test_recordings_keep_the_sample_rates_that_opus_supports(rate: int, tmp_path: Path) -> None:
    [content] = record([tone(tmp_path, "a", 1.0)], [0], 1e9, sample_rate=rate).audio.values()
    path = tmp_path / "clip.ogg"
    path.write_bytes(content)
    assert soundfile.info(path).samplerate == rate
    assert soundfile.info(path).duration == pytest.approx(1.0, abs=1e-3)


def test_speech_needs_about_four_thousand_bytes_per_second() -> None:
    noise = 0.1 * torch.randn(10 * SAMPLE_RATE, generator=torch.Generator().manual_seed(0))
    assert 2000 < len(opus(noise, SAMPLE_RATE)) / 10 < 6000


def test_a_file_damaged_after_the_evaluation_is_reported_and_the_others_are_included(tmp_path: Path) -> None:
    utterances = [tone(tmp_path, name, 1.0) for name in "abc"]
    Path(utterances[1].audio_filepath).write_bytes(b"fLaC broken")
    Path(utterances[2].audio_filepath).unlink()
    clips = record(utterances, range(3), 1e9)
    assert list(clips.audio) == [0]
    assert "b.flac" in clips.problems[1]
    assert "no such file" in clips.problems[2]


def test_the_progress_of_making_a_page_is_reported(fluent: Path) -> None:
    recognizer, utterances = load_recognizer(fluent / "run"), read_manifest(fluent / "test.jsonl")[:3]
    done: dict[str, float] = {}

    @contextmanager
    def progress(step: str, utterances: Iterable[Utterance]) -> Iterator[Callable[[float], None]]:
        done[step] = -sum(utterance.duration for utterance in utterances)

        def on_progress(seconds: float) -> None:
            done[step] += seconds

        yield on_progress

    record_with_features(recognizer, utterances, range(3), 1e9, progress=progress)
    assert done == {"recordings": pytest.approx(0), "pictures": pytest.approx(0)}, "each step is reported until its end"


def test_posteriors_equal_the_log_probs_of_the_net(fluent: Path) -> None:
    recognizer, utterances = load_recognizer(fluent / "run"), read_manifest(fluent / "test.jsonl")[:3]
    clips = record_with_features(recognizer, utterances, [2, 0], 1e9)
    assert list(clips.posteriors) == sorted(clips.posteriors, key=list(clips.posteriors).index)
    assert clips.posteriors.keys() == {0, 2}
    for place, posterior in clips.posteriors.items():
        [(utterance, segments)] = recognizer.segments([utterances[place]])
        [(start, encoder_out)] = segments
        log_probs = recognizer.log_probs(encoder_out)
        assert (posterior.starts, posterior.counts) == ([start], [len(log_probs)])
        assert len(posterior.top) == 3 * TOP * len(log_probs)
        for frame, probabilities in enumerate(log_probs.exp().tolist()):
            best = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])[:TOP]
            for rank, token in enumerate(best):
                low, high, level = posterior.top[3 * (TOP * frame + rank) :][:3]
                assert level == round(255 * probabilities[token])
                assert low + 256 * high == token or abs(probabilities[token] - probabilities[low + 256 * high]) < 1e-5
        assert utterance.duration == utterances[place].duration
    assert clips.tokens[0] == ""
    assert clips.frame_seconds == recognizer.model.frame_seconds


def test_a_long_recording_has_the_posteriors_of_its_chunks(fluent: Path, tmp_path: Path) -> None:
    recognizer = load_recognizer(fluent / "run")
    clips = record_with_features(recognizer, [tone(tmp_path, "long", 65.0)], [0], 1e9)
    posterior = clips.posteriors[0]
    assert len(posterior.starts) > 1
    frames = [
        start + clips.frame_seconds * count for start, count in zip(posterior.starts, posterior.counts, strict=True)
    ]
    assert frames[-1] == pytest.approx(65.0, abs=0.1)


def unpacked(content: bytes, num_bins: int) -> list[list[int]]:
    """Return the levels of each frame; two levels share a byte."""
    halves = [level for byte in content for level in (byte % 16, byte // 16)]
    return [halves[at : at + num_bins] for at in range(0, len(halves) - num_bins + 1, num_bins)]


def test_the_features_in_a_page_are_those_that_the_net_received(fluent: Path) -> None:
    recognizer, utterances = load_recognizer(fluent / "run"), read_manifest(fluent / "test.jsonl")[:3]
    clips = record_with_features(recognizer, utterances, [2, 0], 1e9)
    assert clips.log_mel.keys() == {0, 2}
    for place, content in clips.log_mel.items():
        [example] = [collated_example(recognizer, utterances[place])]
        dark, bright = np.quantile(example, 0.05), np.quantile(example, 0.995)
        frames = unpacked(content, recognizer.model.features.dim)
        assert len(frames) == len(example)
        for frame, values in zip(frames, example.tolist(), strict=True):
            for level, value in zip(frame, values, strict=True):
                assert abs(level - 15 * min(max((value - dark) / (bright - dark), 0), 1)) < 0.5 + 1e-4


def collated_example(recognizer: Recognizer, utterance: Utterance) -> Tensor:
    """Return the features that reach the encoder, (T, F)."""
    features: list[Tensor] = []
    handle = recognizer.model.encoder.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0][0]))
    list(recognizer.recognize([utterance]))
    handle.remove()
    return features[0]


def test_the_features_of_a_long_recording_are_those_of_consecutive_segments(fluent: Path) -> None:
    features = load_recognizer(fluent / "run").model.features
    waveform = torch.randn(40_321, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.01, 1, 40_321)
    frames = features_in_parts(features, waveform, seconds=1.0)
    assert len(frames) == features.num_frames(len(waveform))
    assert torch.equal(features_in_parts(features, waveform, seconds=3.0), features(waveform)), (
        "one segment is the whole recording"
    )
    frames_per_segment = SAMPLE_RATE // features.hop
    for start in range(0, len(frames), frames_per_segment):
        segment = waveform[start * features.hop :][: (frames_per_segment - 1) * features.hop + features.window]
        torch.testing.assert_close(frames[start : start + frames_per_segment], features(segment))
    for num_samples in (0, 1, features.window - 1, features.window):
        assert len(features_in_parts(features, waveform[:num_samples], 1.0)) == (num_samples == features.window)


def test_a_page_with_features_stays_within_its_size_limit(fluent: Path) -> None:
    recognizer, utterances = load_recognizer(fluent / "run"), read_manifest(fluent / "test.jsonl")
    for budget in (0, 20_000, 60_000):
        clips = record_with_features(recognizer, utterances, range(len(utterances)), budget)
        assert sum(map(len, attached(clips).values())) == clips.size <= budget
        assert bool(clips.audio) == bool(budget)


def test_the_browser_draws_each_level_in_its_colour_at_its_position(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    num_frames, num_bins = 61, 23  # an odd number of levels
    features = torch.randn(num_frames, num_bins, generator=torch.Generator().manual_seed(0))
    content = levels(features)
    settings = {"num_mel_bins": num_bins, "sample_rate": 16000, "window": 400, "shift": 160}
    data = {"base64": base64.b64encode(content).decode(), "settings": settings, "frames": num_frames}
    seen = visit(browser, save(tmp_path, page("title", "", ["picture.js"], {"data": data})))
    colours = seen.page.evaluate(
        """(() => {
            const { base64, settings, frames } = JSON.parse(document.getElementById("data").textContent);
            const levels = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
            const canvas = document.createElement("canvas"), { sample_rate: rate, window, shift } = settings;
            // One pixel per frame, from the start of the first frame's window.
            Picture.mel(canvas, frames, { ...settings, levels }, (window - shift) / 2 / rate, rate / shift);
            const context = canvas.getContext("2d"), height = canvas.height / settings.num_mel_bins;
            const at = (t, bin) => context.getImageData(t, Math.floor(canvas.height - (bin + 0.5) * height), 1, 1).data;
            return Array.from({ length: frames }, (_, t) =>
                Array.from({ length: settings.num_mel_bins }, (_, bin) => [...at(t, bin)].slice(0, 3)));
        })()"""
    )
    seen.page.context.close()
    colour_of = {}
    for frame, drawn in zip(unpacked(content, num_bins), colours, strict=True):
        for level, colour in zip(frame, drawn, strict=True):
            assert colour_of.setdefault(level, colour) == colour
    assert sorted(colour_of) == list(range(16))
    luminance = [0.2126 * r + 0.7152 * g + 0.0722 * b for _, (r, g, b) in sorted(colour_of.items())]
    assert luminance == sorted(set(luminance)), "louder is lighter"


# The commands


def evaluated(fluent: Path, *arguments: object) -> int:
    return evaluate([str(fluent / "run"), *map(str, arguments), "--device", "cpu"])


def test_a_broken_file_is_named_on_the_page_and_the_rest_is_displayed(
    browser: Any,  # noqa: F811
    fluent: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = [json.loads(line) for line in (fluent / "test.jsonl").read_text().splitlines()[:5]]
    for line in lines:
        line["audio_filepath"] = str(fluent / line["audio_filepath"])
    lines[3]["audio_filepath"] = str(tmp_path / "broken.flac")
    (tmp_path / "broken.flac").write_bytes(b"fLaC, or not")
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert evaluated(fluent, tmp_path / "some.jsonl", "--report", tmp_path / "report.html") == 1
    broken, writing = capsys.readouterr().err.splitlines()
    assert "broken.flac" in broken
    assert writing == f"writing {tmp_path / 'report.html'}"
    seen = visit(browser, tmp_path / "report.html")
    assert seen.page.locator("#utterances tr[data-index]").count() == 4
    warning = seen.page.locator(".warning")
    assert warning.locator("summary").inner_text() == "1 utterance could not be read, and is not counted"
    warning.locator("summary").click()
    assert "broken.flac" in warning.inner_text()
    seen.page.context.close()


def test_a_recording_that_cannot_be_encoded_is_reported_at_its_utterance(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    clips = replace(NO_CLIPS, problems={0: "a.flac: must be a readable audio file; there is no such file."})
    seen = visit(browser, f"{save(tmp_path, report_of([scored('one', 'two', name='1')], clips)).as_uri()}#utterance=1")
    wait_until(seen.page, "document.querySelector('dialog[open]') !== null")
    assert "No recording: a.flac: must be a readable audio file" in seen.page.locator("dialog").inner_text()
    assert seen.page.locator(".play").is_disabled()
    seen.page.context.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--report", "."], "--report ... is a folder"),
        (["--report", "folder"], "--report ... 'folder'"),
        (["--report", "r.html", "--report-audio", "-1"], "at least 0; got -1.0"),
        (["--report", "r.html", "--report-audio", "nan"], "at least 0; got nan"),
        (["--report-audio", "3"], "--report-audio ... --report"),
    ],
)
def test_an_impossible_report_is_refused_before_any_work(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for command, others in ((evaluate, ["no-model", "no-manifest.jsonl"]), (compare, ["no-a.jsonl", "no-b.jsonl"])):
        with refused(InputError, message):
            command([*others, *arguments])


def test_the_folder_of_a_report_is_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.html"
    files.check_output("--report", path, "report.html")
    assert not path.parent.exists(), "the check creates no file"
    files.write_output("--report", path, "text")
    assert path.read_text() == "text"
    with refused(InputError, "--report ... Not a directory"):
        files.check_output("--report", path / "report.html", "report.html")


def test_a_report_is_written_to_the_target_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.html").symlink_to(tmp_path / "target.html")
    files.check_output("--report", tmp_path / "link.html", "report.html")
    files.write_output("--report", tmp_path / "link.html", "text")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "target.html").read_text() == "text"


def test_a_full_disk_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_whole_text", full)
    with refused(InputError, "--report ... space left"):
        files.write_output("--report", tmp_path / "r.html", "text")


def test_a_comparison_shows_both_hypotheses_below_the_reference(
    browser: Any,  # noqa: F811
    fluent: Path,
    tmp_path: Path,
) -> None:
    assert evaluated(fluent, fluent / "test.jsonl", "--output-dir", tmp_path / "a") == 0
    lines = [json.loads(line) for line in (tmp_path / "a" / "test.utterances.jsonl").read_text().splitlines()]
    place = next(place for place, line in enumerate(lines) if len(line["words"]) >= 3)
    worse = lines[place]
    worse["words"][0]["text"] = "wrong"
    del worse["words"][1]
    worse["hypothesis"] = " ".join(word["text"] for word in worse["words"])
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report, first = tmp_path / "compare.html", str(tmp_path / "a" / "test.utterances.jsonl")
    assert compare([first, str(tmp_path / "b.jsonl"), "--report", str(report)]) == 0
    seen = visit(browser, report)
    tab = seen.page
    assert tab.locator("[data-figure=errors]").inner_text() == "+2"
    rows = tab.locator("#utterances tbody tr[data-index]")
    # Until the page has its layout, the table has room for a single row.
    wait_until(tab, "document.querySelectorAll('#utterances tbody tr[data-index]').length >= 10")
    assert rows.first.locator("td").first.inner_text() == worse["id"], "the largest change is first"
    assert [cell.inner_text() for cell in rows.first.locator("td.number").all()][2:5] == ["0", "2", "+2"]
    rows.first.locator("a").click()
    wait_until(tab, "document.querySelector('.player canvas')?.hidden === false")
    reference = worse["reference"].split()
    columns = tab.locator(".alignment .column:not(.names)").evaluate_all(
        "(columns) => columns.map((one) => [...one.children].map((cell) =>"
        " cell.firstElementChild.firstChild.textContent))"
    )
    assert [column[:2] for column in columns] == [[word, word] for word in reference]
    assert sorted(column[2] for column in columns) == sorted(["wrong", "–", *reference[2:]])  # noqa: RUF001
    tab.locator(".alignment .column:not(.names)").first.locator("button").nth(1).click()
    wait_until(tab, "document.querySelectorAll('.alignment .now').length === 1")
    tab.get_by_role("button", name="Show the words of A").click()
    assert tab.locator(".alignment .now").count() == 0, "a removed player marks no word"
    assert tab.locator(".timeline-words button").all_inner_texts() == reference
    tab.keyboard.press("Escape")
    tab.select_option("[name=kind]", "worse")
    assert rows.count() == 1
    assert overflow(tab) <= 0
    assert seen.complaints == []
    assert [request for request in seen.requests if not request.startswith(("file:", "blob:", "data:"))] == []
    tab.context.close()


def test_the_numbers_of_a_comparison_equal_those_of_compare(browser: Any, tmp_path: Path) -> None:  # noqa: F811
    a, b = simulated(60, 1), simulated(60, 2, error_rate=0.2)
    comparison = compared(a, b)
    seen = visit(browser, save(tmp_path, comparison_report(a, b, comparison, About("Title", []), NO_CLIPS)))
    tab = seen.page
    assert tab.locator("[data-figure=difference]").inner_text() == f"{100 * comparison['difference']['rate']:+.2f}"
    text = tab.locator(".headline").inner_text()
    for prefix in ("", "speaker_"):
        low, high = comparison["difference"][f"{prefix}interval"]
        assert f"{100 * low:+.2f} to {100 * high:+.2f}, p" in text
    wins = comparison["utterance_wins"]
    assert f"{wins['a']} better in A, {wins['b']} in B, {wins['tie']} equal" in text
    for which, system_rows in (("a", a), ("b", b)):
        rate = sum(row.counts.errors for row in system_rows) / sum(row.counts.reference_length for row in system_rows)
        assert tab.locator(f"[data-figure=wer_{which}]").inner_text() == f"{100 * rate:.2f} %"
    tab.context.close()


def test_models_are_compared_even_if_the_durations_in_their_manifests_differ(tmp_path: Path) -> None:
    """The durations of the first manifest are used, so that the bins of both models have the same utterances."""
    a = simulated(60, 1)
    b = [
        replace(row, utterance=replace(row.utterance, duration=0.4 * row.utterance.duration + place % 3))
        for place, row in enumerate(simulated(60, 2))
    ]
    html = comparison_report(a, b, compared(a, b), About("Title", []), NO_CLIPS)
    bins = figures(a)["by"]["duration"]
    assert len(bins) > 2
    for duration_bin in bins:
        low, _, high, _ = duration_bin["name"].split()
        inside = [
            place for place, system_rows in enumerate(a) if float(low) <= system_rows.utterance.duration < float(high)
        ]
        for which, system_rows in (("A", a), ("B", b)):
            errors = sum(system_rows[place].counts.errors for place in inside)
            rate = f"{100 * errors / sum(system_rows[place].counts.reference_length for place in inside):.1f} %"
            assert f"<td>{duration_bin['name']}, {which}</td><td>{rate}</td>" in html


def test_escaped_text_is_displayed_unchanged_and_invalid_bytes_are_displayed_as_escapes() -> None:
    assert escape("<a href='x'>\"&") == "&lt;a href=&#x27;x&#x27;&gt;&quot;&amp;"
    assert escape("caf\udce9") == "caf\\udce9"
