"""The report of an evaluation in a real browser: its figures equal those of plain loops over the utterance files."""

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jiwer
import pytest

from asr.core.checkpoint.load import load_recognizer
from asr.core.evaluation.analysis import figures
from asr.core.evaluation.utterances import read_scored
from asr.evaluate import main as evaluate
from tests.browser import Visit, browser, overflow, poor_contrasts, visit, wait_until  # noqa: F401

pytestmark = pytest.mark.apps  # asr.evaluate --report needs apps/report

Line = dict[str, Any]


class Made(NamedTuple):
    """A report and the lines of its utterances."""

    page: Path
    lines: list[Line]
    written: list[Path]


def spoil(text: str, draw: random.Random) -> str:
    """Return a text that differs from the spoken one: deletions, insertions, substitutions, and capitals."""
    words = []
    for word in text.split():
        chance = draw.random()
        if chance < 0.15:
            continue
        words += ["extra", word] if chance < 0.25 else [word[::-1]] if chance < 0.45 else [word]
    return " ".join(words).capitalize()


@pytest.fixture(scope="module")
def made(fluent: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A real evaluation on two manifests: one that is recognised well, and one with wrong texts."""
    folder, draw = tmp_path_factory.mktemp("report"), random.Random(0)
    manifests = []
    for name in ("heard", "spoilt"):
        entries = [json.loads(line) for line in (fluent / "test.jsonl").read_text().splitlines()]
        for number, entry in enumerate(entries):
            entry["audio_filepath"] = str(fluent / entry["audio_filepath"])
            entry["speaker"] = f"speaker {number % 7}"
            if name == "spoilt":
                entry["text"] = spoil(entry["text"], draw)
        manifests.append(folder / f"{name}.jsonl")
        manifests[-1].write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    page, out = folder / "report.html", folder / "out"
    arguments = [str(fluent / "run"), *map(str, manifests), "--report", str(page), "--output-dir", str(out)]
    assert evaluate([*arguments, "--device", "cpu"]) == 0
    written = [out / f"{name}.utterances.jsonl" for name in ("heard", "spoilt")]
    return Made(page, [json.loads(line) for path in written for line in path.read_text().splitlines()], written)


@pytest.fixture(scope="module")
def opened(browser: Any, made: Made) -> Iterator[Visit]:  # noqa: F811
    """The freshly opened report, for tests that do not change it."""
    seen = visit(browser, made.page)
    yield seen
    seen.page.context.close()


@pytest.fixture
def fresh(browser: Any, made: Made) -> Iterator[Visit]:  # noqa: F811
    """The report opened for one test; at the end there must be no errors and no requests."""
    seen = visit(browser, made.page)
    yield seen
    seen.page.context.close()
    assert seen.complaints == []
    assert [request for request in seen.requests if not request.startswith(("file:", "blob:", "data:"))] == []


def number(page: Any, name: str) -> str:
    figure: str = page.locator(f'[data-figure="{name}"]').inner_text()
    return figure


def table_of(page: Any, title: str) -> list[list[str]]:
    """Return the table below the chart with this title, without its header."""
    rows = """(figure) => [...figure.querySelectorAll("tbody tr")].map((row) =>
        [...row.cells].map((cell) => cell.textContent))"""
    cells: list[list[str]] = page.locator("figure.chart", has_text=title).first.evaluate(rows)
    assert cells
    return cells


def rows_in_sight(page: Any) -> list[list[str]]:
    rows = "(lines) => lines.map((line) => [...line.cells].map((cell) => cell.textContent))"
    cells: list[list[str]] = page.locator("#utterances tbody tr[data-index]").evaluate_all(rows)
    return cells


def all_rows(page: Any) -> list[list[str]]:
    """Return all rows, up to 400: the event `beforeprint` makes the page show them."""
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    return rows_in_sight(page)


def percent(share: float, decimals: int = 2) -> str:
    return f"{100 * share:.{decimals}f} %"


def edits(line: Line) -> list[tuple[str, str | None, str | None]]:
    """Return jiwer's alignment as (kind, word of the reference, word of the hypothesis)."""
    reference, hypothesis = line["reference"].split(), line["hypothesis"].split()
    aligned: list[tuple[str, str | None, str | None]] = []
    for chunk in jiwer.process_words(line["reference"], line["hypothesis"]).alignments[0]:
        ours = reference[chunk.ref_start_idx : chunk.ref_end_idx]
        theirs = hypothesis[chunk.hyp_start_idx : chunk.hyp_end_idx]
        if chunk.type == "delete":
            aligned += [("deletion", word, None) for word in ours]
        elif chunk.type == "insert":
            aligned += [("insertion", None, word) for word in theirs]
        else:
            kind = "equal" if chunk.type == "equal" else "substitution"
            aligned += [
                (kind, reference_word, hypothesis_word)
                for reference_word, hypothesis_word in zip(ours, theirs, strict=True)
            ]
    return aligned


def count(line: Line, kind: str) -> int:
    return sum(edit[0] == kind for edit in edits(line))


def errors(line: Line) -> int:
    return sum(edit[0] != "equal" for edit in edits(line))


def length(line: Line) -> int:
    return len(line["reference"].split())


def wer(lines: Sequence[Line]) -> float:
    return sum(errors(line) for line in lines) / sum(length(line) for line in lines)


def own_wer(line: Line) -> float:
    """Return the WER of one utterance; with an empty reference, any recognised word makes it infinite."""
    if length(line) == 0:
        return math.inf if errors(line) else 0.0
    return errors(line) / length(line)


def size(lines: Sequence[Line]) -> str:
    words = sum(length(line) for line in lines)
    return f"{words:,} word{'s' * (words != 1)}, {len(lines):,} utterance{'s' * (len(lines) != 1)}"


def test_the_evaluation_has_errors_of_each_kind_so_that_the_other_tests_are_meaningful(made: Made) -> None:
    assert all(sum(count(line, kind) for line in made.lines) > 5 for kind in ("substitution", "insertion", "deletion"))


def test_the_rates_equal_those_of_jiwer_on_the_written_utterances(opened: Visit, made: Made) -> None:
    page = opened.page
    references, hypotheses, texts = ([line[key] for line in made.lines] for key in ("reference", "hypothesis", "text"))
    assert number(page, "wer") == percent(jiwer.wer(references, hypotheses))
    assert number(page, "cer") == percent(jiwer.cer(references, hypotheses))
    assert number(page, "raw_wer") == percent(jiwer.wer(texts, hypotheses))
    assert number(page, "raw_wer") != number(page, "wer"), "the texts have capitals"
    assert number(page, "errors") == str(sum(map(errors, made.lines)))
    figure_text = page.locator(".figure", has_text="Word errors").inner_text()
    assert f"of {sum(map(length, made.lines))} words" in figure_text
    for kind in ("substitution", "insertion", "deletion"):
        assert f"{sum(count(line, kind) for line in made.lines)} {kind}s" in figure_text
    wrong = sum(errors(line) > 0 for line in made.lines)
    assert f"in {wrong} of {len(made.lines)} utterances" in figure_text
    hours = sum(line["duration"] for line in made.lines) / 3600
    assert f"{hours:.2f} hours, 7 speakers" in figure_text


def test_the_report_names_what_was_measured(opened: Visit, made: Made, fluent: Path) -> None:
    assert opened.page.locator("h1").inner_text() == "Evaluation of run"
    facts = opened.page.locator("dl.facts").inner_text().replace("\n", " ")
    manifests = ", ".join(str(made.page.with_name(f"{name}.jsonl")) for name in ("heard", "spoilt"))
    assert f"Model {fluent / 'run'} Manifests {manifests}" in facts
    assert "Texts normalised by basic Decoder greedy: the best path" in facts
    assert "recordings of 120 of 120 utterances" in opened.page.locator("main").inner_text()


def test_the_description_of_a_beam_search_has_its_settings(fluent: Path, tmp_path: Path) -> None:
    (tmp_path / "hotwords.txt").write_text("abc\nbad fade\n")
    search = {"name": "beam", "beam_size": 4, "fusion": {"hotwords": str(tmp_path / "hotwords.txt")}}
    decoder = load_recognizer(fluent / "run", decode=search).decode
    assert decoder.description == "beam search, 4 hypotheses, 2 hotwords"


def test_the_intervals_equal_those_computed_from_written_utterances(opened: Visit, made: Made) -> None:
    """test_bootstrap.py compares the bootstrap itself with a plain loop."""
    report = figures([row for path in made.written for row in read_scored(path)])
    for name, key in (("wer", "words"), ("cer", "characters"), ("raw_wer", "raw_words")):
        figure_text = opened.page.locator(".figure", has=opened.page.locator(f'[data-figure="{name}"]')).inner_text()
        for over in ("interval", "speaker_interval"):
            low, high = report[key][over]
            assert f"95 %: {100 * low:.2f} to {100 * high:.2f} over" in figure_text


@pytest.mark.parametrize(
    ("title", "value"),
    [
        ("Short and long utterances", lambda line: line["duration"]),
        ("Slow and fast speech", lambda line: length(line) / line["duration"]),
    ],
)
def test_a_breakdown_by_a_number_contains_each_utterance_once(
    title: str, value: Any, opened: Visit, made: Made
) -> None:
    rest = list(made.lines)
    for name, rate, _, note in table_of(opened.page, title):
        low, high = ([float(digits) for digits in re.findall(r"[\d.]+", name)] + [math.inf])[:2]
        group = [line for line in made.lines if low <= value(line) < high]
        assert (rate, note) == (percent(wer(group), 1), size(group))
        rest = [line for line in rest if line not in group]
    assert rest == []


@pytest.mark.parametrize(("title", "key"), [("By subset", "subset"), ("By speaker", "speaker")])
def test_a_breakdown_by_a_name_has_the_figures_of_its_utterances(
    title: str, key: str, opened: Visit, made: Made
) -> None:
    rows = table_of(opened.page, title)
    assert {row[0] for row in rows} == {line[key] for line in made.lines}
    for name, rate, _, note in rows:
        group = [line for line in made.lines if line[key] == name]
        assert (rate, note) == (percent(wer(group), 1), size(group))
    if key == "speaker":
        rates = [float(row[1].split()[0]) for row in rows]
        assert rates == sorted(rates, reverse=True)


def test_the_intervals_of_breakdowns_equal_those_computed_from_written_utterances(opened: Visit, made: Made) -> None:
    breakdowns = figures([row for path in made.written for row in read_scored(path)])["by"]
    for title, key in (("By speaker", "speaker"), ("By subset", "subset"), ("Short and long", "duration")):
        expected = {
            group["interval"] and tuple(percent(end, 1) for end in group["interval"]) for group in breakdowns[key]
        }
        intervals = {tuple(row[2].split(" to ")) if row[2] != "-" else None for row in table_of(opened.page, title)}
        assert intervals == expected


def test_kinds_of_error_are_shares_of_the_reference_words(opened: Visit, made: Made) -> None:
    words = sum(map(length, made.lines))
    for name, share, _, note in table_of(opened.page, "Kinds of error"):
        edited = sum(count(line, name[:-1]) for line in made.lines)
        assert (share, note) == (percent(edited / words, 1), f"{edited} of {words} words")


def test_the_distribution_counts_utterances_by_their_own_wer(opened: Visit, made: Made) -> None:
    rates = [own_wer(line) for line in made.lines]
    rows = table_of(opened.page, "How the errors are spread")
    assert [row[0] for row in rows] == ["0", *(str(tens) for tens in range(10, 101, 10)), ">100"]
    expected = [sum(rate == 0 for rate in rates)]
    expected += [sum(tenth / 10 < rate <= (tenth + 1) / 10 for rate in rates) for tenth in range(10)]
    assert [int(row[1]) for row in rows] == [*expected, sum(rate > 1 for rate in rates)]


def words_right(lines: Sequence[Line]) -> list[tuple[float, bool]]:
    """Return the confidence of each word of the hypotheses, and whether it is right."""
    pairs = []
    for line in lines:
        matches = [kind == "equal" for kind, _, word in edits(line) if word is not None]
        pairs += [(word["confidence"], right) for word, right in zip(line["words"], matches, strict=True)]
    return pairs


def test_the_confidence_chart_counts_right_and_wrong_words(opened: Visit, made: Made) -> None:
    pairs = words_right(made.lines)
    for low, high, right, wrong in table_of(opened.page, "Confidence of right and wrong words"):
        least, most = (float(bound.split()[0]) / 100 for bound in (low, high))
        inside = [is_right for sure, is_right in pairs if least <= sure < most or sure == most == 1]
        assert (int(right), int(wrong)) == (sum(inside), len(inside) - sum(inside))


def test_auc_and_calibration_error_equal_those_of_plain_loops(opened: Visit, made: Made) -> None:
    pairs = words_right(made.lines)
    wins = [
        (sure > unsure) + (sure == unsure) / 2
        for sure, is_right in pairs
        if is_right
        for unsure, other in pairs
        if not other
    ]
    note = opened.page.locator("figure.chart", has_text="Reliability of confidence").inner_text()
    assert f"AUC {sum(wins) / len(wins):.3f}" in note
    bins: list[list[tuple[float, bool]]] = [[]]
    wanted = min(10, len(pairs) // 20)  # bins with equal numbers of words; equal confidences share a bin
    for place, pair in enumerate(sorted(pairs)):
        if place >= len(bins) * len(pairs) / wanted and pair[0] != bins[-1][-1][0]:
            bins.append([])
        bins[-1].append(pair)
    points = [
        (sum(sure for sure, _ in group) / len(group), sum(right for _, right in group) / len(group)) for group in bins
    ]
    rows = table_of(opened.page, "Reliability of confidence")
    assert rows == [[percent(sure, 1), percent(right, 1)] for sure, right in points]
    gap = sum(len(group) * abs(sure - right) for group, (sure, right) in zip(bins, points, strict=True)) / len(pairs)
    assert f"ECE {percent(gap, 1)}" in note


def test_confusions_equal_those_in_the_alignments(opened: Visit, made: Made) -> None:
    counted = Counter(edit for line in made.lines for edit in edits(line) if edit[0] != "equal")
    script = "(lines) => lines.map((line) => [...line.cells].map((cell) => cell.textContent))"
    for kind in ("substitution", "insertion", "deletion"):
        expected = [
            [*(word for word in edit[1:] if word is not None), str(times)]
            for edit, times in counted.items()
            if edit[0] == kind
        ]
        list_of = opened.page.locator(".counted", has_text=f"{kind}s".capitalize())
        shown = list_of.locator("tbody tr").evaluate_all(script)
        assert len(shown) == min(50, len(expected))
        assert all(row in expected for row in shown)
        times = [int(row[-1]) for row in shown]
        assert times == sorted((int(row[-1]) for row in expected), reverse=True)[: len(shown)]


def test_each_row_of_the_table_shows_one_written_utterance(fresh: Visit, made: Made) -> None:
    rows = all_rows(fresh.page)
    assert len(rows) == len(made.lines) == 120
    expected = []
    for line in made.lines:
        kinds = [count(line, kind) for kind in ("substitution", "insertion", "deletion")]
        texts = [line["id"], line["subset"], line["speaker"], f"{line['duration']:.1f}", str(length(line))]
        sure = f"{line['confidence']:.2f}"
        rate = "∞" if own_wer(line) == math.inf else percent(own_wer(line), 1)
        marked = " ".join(
            str(hypothesis_word if kind != "deletion" else reference_word)
            for kind, reference_word, hypothesis_word in edits(line)
        )
        expected.append([*texts, *map(str, kinds), str(sum(kinds)), rate, sure, "yes", marked])
    assert sorted([*row[:-1], row[-1].strip()] for row in rows) == sorted(expected)


def as_rate(text: str) -> float:
    return math.inf if text == "∞" else float(text.removesuffix(" %"))


def test_a_click_on_a_heading_sorts_and_a_second_one_reverses_the_order(fresh: Visit) -> None:
    page = fresh.page
    for name, column, order in (
        ("Seconds", 3, float),
        ("WER", 9, lambda text: float(text.split()[0].replace("∞", "inf"))),
    ):
        heading = page.locator("#utterances th", has_text=name)
        heading.locator("button").click()
        values = [order(row[column]) for row in all_rows(page)]
        assert values == sorted(values, reverse=True)
        assert heading.get_attribute("aria-sort") == "descending"
        heading.locator("button").click()
        assert [order(row[column]) for row in all_rows(page)] == sorted(values)
        assert heading.get_attribute("aria-sort") == "ascending"
        assert page.locator("#utterances th[aria-sort]").count() == 1


def test_the_utterances_with_the_most_errors_come_first(fresh: Visit) -> None:
    errors = [int(row[8]) for row in all_rows(fresh.page)]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0


def test_filters_show_and_count_the_matching_utterances(fresh: Visit, made: Made) -> None:
    page = fresh.page
    page.select_option("[name=subset]", label="spoilt")
    page.select_option("[name=kind]", "insertions")
    page.fill("[name=least]", "2")
    left = [
        line for line in made.lines if line["subset"] == "spoilt" and count(line, "insertion") and errors(line) >= 2
    ]
    assert 0 < len(left) < 60
    assert sorted(row[0] for row in all_rows(page)) == sorted(line["id"] for line in left)
    wrong, words = sum(map(errors, left)), sum(map(length, left))
    summary = f"{len(left)} of 120 utterances, {words} words; {wrong} errors, WER {percent(wer(left), 1)}"
    assert page.locator("#found").inner_text() == summary
    page.get_by_role("button", name="Reset").click()
    wait_until(page, "document.getElementById('found').textContent.startsWith('120 utterances')")
    page.select_option("[name=speaker]", label="speaker 3")
    assert {row[2] for row in all_rows(page)} == {"speaker 3"}


def test_search_covers_id_reference_and_hypothesis(fresh: Visit, made: Made) -> None:
    page = fresh.page
    for sought in ("TEST-17", "extra", made.lines[5]["hypothesis"].split()[0]):
        page.fill("[name=search]", sought)
        expected = [
            (line["id"], line["subset"])
            for line in made.lines
            if any(sought.lower() in line[key].lower() for key in ("id", "reference", "hypothesis"))
        ]
        assert expected
        assert sorted((row[0], row[1]) for row in all_rows(page)) == sorted(expected)
    page.fill("[name=search]", "nobody says this")
    assert all_rows(page) == []
    assert page.locator("#found").inner_text().startswith("0 of 120 utterances")


def find(made: Made, least: int = 2) -> Line:
    """Find an utterance with at least this number of recognised words and with an error."""
    return next(line for line in made.lines if errors(line) and len(line["words"]) >= least)


def open_line(page: Any, line: Line) -> None:
    page.evaluate("(address) => { location.hash = address; }", f"utterance={line['id']}&subset={line['subset']}")
    page.wait_for_selector("dialog[open]")
    wait_until(page, "document.querySelector('.player canvas')?.hidden === false")  # after the recording is decoded


def test_an_utterance_shows_its_alignment(fresh: Visit, made: Made) -> None:
    page = fresh.page
    for kind in ("substitution", "insertion", "deletion"):
        line = next(line for line in made.lines if count(line, kind))
        open_line(page, line)
        columns = page.locator(".alignment .column:not(.names)").evaluate_all(
            "(columns) => columns.map((one) => [...one.children].map((cell) => cell.firstElementChild))"
            ".map((cells) => cells.map((cell) => [cell.firstChild.textContent, cell.className]))"
        )
        expected = []
        for step, reference_word, hypothesis_word in edits(line):
            classes = {"substitution": ("", "sub"), "insertion": ("nothing", "ins"), "deletion": ("del", "nothing del")}
            top, below = classes.get(step, ("", ""))
            expected.append([[reference_word or "+", top], [hypothesis_word or "–", below]])  # noqa: RUF001
        assert columns == expected
        page.keyboard.press("Escape")
        wait_until(page, "location.hash === ''")  # the dialog is closed


def test_a_click_on_a_word_moves_to_its_time_and_marks_it(fresh: Visit, made: Made) -> None:
    page, line = fresh.page, find(made)
    open_line(page, line)
    last = len(line["words"]) - 1
    page.evaluate("HTMLMediaElement.prototype.play = async function () {}")  # otherwise playback would move on
    for words in (".alignment button", ".timeline-words button"):
        page.locator(words).nth(0).click()
        page.locator(words).nth(last).click()
        at = page.evaluate("document.querySelector('.player audio').currentTime")
        assert at == pytest.approx(line["words"][last]["start"], abs=1e-3)
        wait_until(
            page,
            f"document.querySelectorAll('.alignment button')[{last}].classList.contains('now')",
        )
        assert page.locator(".now").all_inner_texts() == [line["words"][last]["text"]] * 2


def test_the_recording_plays_and_has_the_duration_of_the_utterance(fresh: Visit, made: Made) -> None:
    page, line = fresh.page, find(made)
    open_line(page, line)
    wait_until(page, "document.querySelector('.player audio')?.duration > 0")  # the header has been read
    seconds = page.evaluate("document.querySelector('.player audio')?.duration")
    assert seconds == pytest.approx(line["duration"], abs=0.03)
    page.locator(".player .play").click()
    wait_until(page, "document.querySelector('.player audio')?.currentTime > 0.1")


def test_log_mel_and_tokens_are_drawn_on_request(fresh: Visit, made: Made) -> None:
    page = fresh.page
    open_line(page, find(made))
    colours = """(place) => {
        const canvas = document.querySelectorAll(".timeline canvas")[place];
        if (canvas.hidden) return 0;
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
    }"""
    assert page.evaluate(colours, 0) >= 2, "the waveform"
    assert page.evaluate(colours, 1) == page.evaluate(colours, 2) == 0
    page.locator("[data-picture=mel]").click()
    assert page.evaluate(colours, 1) == 17, "every level has its colour, and there is no other colour"
    page.locator("[data-picture=tokens]").click()
    assert page.evaluate(colours, 2) > 3
    assert re.fullmatch(r"0\.00 s: (blank|.+) \d+ %.*", page.locator(".readout").inner_text())
    page.locator("[data-picture=mel]").click()
    assert page.evaluate(colours, 1) == 0


def test_the_page_can_be_used_with_the_keyboard_alone(fresh: Visit) -> None:
    page = fresh.page
    page.locator("#utterances thead button").last.focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.textContent"
    order = [row[0] for row in all_rows(page)]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(focused) == order[0]
    for key, place in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowUp", 1), ("End", 119), ("Home", 0), ("ArrowDown", 1)):
        page.keyboard.press(key)
        assert page.evaluate(focused) == order[place]
    for key in ("Enter", " "):
        page.keyboard.press(key)
        page.wait_for_selector("dialog[open]")
        assert page.locator("dialog h2").inner_text() == order[1]
        page.keyboard.press("Escape")
        wait_until(page, "location.hash === ''")  # the dialog is closed
        assert page.evaluate(focused) == order[1], "the focus returns to the row"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("j")
    wait_until(page, f"document.querySelector('dialog h2')?.textContent === {json.dumps(order[2])}")
    page.locator(".alignment button").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.matches('.alignment button')")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


@pytest.mark.slow
def test_utterances_that_are_closed_while_their_audio_loads_leave_no_errors(fresh: Visit) -> None:
    page = fresh.page
    page.locator("#utterances thead button").last.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    for _ in range(100):  # one in fifteen failed
        page.keyboard.press("Enter")
        page.wait_for_selector("dialog[open]")
        page.keyboard.press("Escape")
        wait_until(page, "location.hash === ''")


def test_an_utterance_has_an_address_of_its_own(browser: Any, made: Made) -> None:  # noqa: F811
    line = next(line for line in made.lines if line["subset"] == "spoilt" and line["text"])
    seen = visit(browser, f"{made.page.as_uri()}#utterance={line['id']}&subset=spoilt")
    seen.page.wait_for_selector("dialog[open]")
    assert seen.page.locator("dialog h2").inner_text() == line["id"]
    assert f"As written: {line['text']}" in seen.page.locator("dialog").inner_text()
    wait_until(seen.page, "document.querySelector('.player audio')?.duration > 0")
    seen.page.locator("dialog").get_by_role("button", name="Close").click()
    wait_until(seen.page, "location.hash === ''")
    seen.page.go_back()
    seen.page.wait_for_selector("dialog[open]")
    seen.page.context.close()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (380, "light"),
        *(
            pytest.param(*slow, marks=pytest.mark.slow)
            for slow in ((380, "dark"), (900, "light"), (900, "dark"), (1400, "light"))
        ),
        (1400, "dark"),
    ],
)
def test_the_page_is_readable_at_any_width_and_colour_scheme(browser: Any, made: Made, width: int, scheme: str) -> None:  # noqa: F811
    seen = visit(browser, made.page, width=width, scheme=scheme)
    dark = seen.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (dark == "rgb(20, 22, 26)") == (scheme == "dark")
    for summary in seen.page.locator("summary").all():
        summary.click()
    assert overflow(seen.page) <= 0
    assert poor_contrasts(seen.page) == []
    seen.page.locator("#utterances tbody a").first.click()
    seen.page.wait_for_selector("dialog[open]")
    seen.page.locator("[data-picture=tokens]").click()
    assert overflow(seen.page) <= 0
    assert poor_contrasts(seen.page) == []
    seen.page.context.close()


def test_every_control_and_chart_has_a_name(fresh: Visit, made: Made) -> None:
    open_line(fresh.page, find(made))
    nameless = fresh.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a, svg[role=img], dialog")].filter((one) =>
            !(one.getAttribute("aria-label") || one.getAttribute("aria-labelledby") || one.textContent.trim() ||
              one.labels?.[0]?.textContent.trim())).map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_a_mark_of_a_chart_shows_its_value_on_hover(fresh: Visit) -> None:
    page = fresh.page
    chart = page.locator("figure.chart", has_text="Kinds of error")
    chart.scroll_into_view_if_needed()
    wait_until(page, "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
    chart.locator("rect.hit").first.hover()  # only now, because scrolling hides the tooltip
    share = table_of(page, "Kinds of error")[0][1]
    assert page.locator(".tip").is_visible()
    tip = page.locator(".tip").inner_text()
    assert tip.startswith("substitutions")
    assert share in tip
