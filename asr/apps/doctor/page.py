"""Output of asr.doctor: findings on the terminal during the checks, and a page with recordings of the worst cases."""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from asr.apps.doctor.finding import Case, Fact, Finding, Severity, refuse_errors
from asr.apps.doctor.learning_rates import RangeTest
from asr.apps.web.chart import Axis, Series, line_chart
from asr.apps.web.clips import Clips, record
from asr.apps.web.curves import Curve
from asr.apps.web.figures import facts, figure
from asr.apps.web.page import escape, page
from asr.apps.web.utterances import attachments
from asr.base.system.files import check_output, write_output
from asr.base.text.numbers import counted, percent
from asr.base.text.printable import printable
from asr.core.data.manifest import Utterance
from asr.core.run.learning_rate import PlannedRates
from asr.errors import InputError

AFTER_WHICH_TO_BREAK = re.compile(r"(?<=[_/])(?!$)")  # in long ids; browsers break after a hyphen by themselves
SHOWN = 20  # maximum number of listed cases of a finding; further cases are only counted
RATE_BUCKETS = 100  # the chart of the learning rate has at most four points in each
AUDIO_BYTES = 20_000_000  # maximum size of the recordings in a page: half an hour of speech


class Diagnosis:
    """Collects findings and facts, and prints each at once, because the last check, of memory, may crash the process.

    Args:
        name: name of the corpus.
        path: path of the page.
    """

    def __init__(self, name: str, path: Path) -> None:
        check_output("doctor.report", path, path.name)
        self._name, self._path = name, path
        self._findings: list[Finding] = []
        self._facts: list[Fact] = []
        self._charts: list[str] = []

    def add(self, findings: Sequence[Finding], facts: Sequence[Fact] = ()) -> None:
        """Print and store findings, worst finding first, and facts."""
        for finding in sorted(findings, key=lambda finding: finding.severity):
            print("\n".join(finding.lines()), end="\n\n", flush=True)
        for name, description in facts:
            print(printable(f"{name}: {description}"), flush=True)
        self._findings += findings
        self._facts += facts

    def draw(self, chart: str) -> None:
        """Add a chart to the page."""
        self._charts.append(chart)

    def refuse(self, error: InputError) -> None:
        """Add a finding for an error that makes training impossible."""
        self.add([Finding("training", Severity.ERROR, str(error), "Correct this error before training.")])

    def conclude(self) -> None:
        """Write the page, and report whether training should start."""
        findings = sorted(self._findings, key=lambda finding: finding.severity)
        counts = [sum(finding.severity == severity for finding in findings) for severity in Severity]
        parts = [counted(count, severity.name.lower()) for severity, count in zip(Severity, counts, strict=True)]
        errors = counts[Severity.ERROR]
        verdict = f"{', '.join(parts)}: training {'should not' if errors else 'may'} start"
        content = diagnosis_page(self._name, verdict, findings, self._facts, self._charts)
        write_output("doctor.report", self._path, content)
        print("\n" + printable(f"{verdict}; report with recordings: {self._path}"), flush=True)
        refuse_errors(findings)


def rate_chart(rates: PlannedRates) -> str:
    """Draw the learning rate that is planned for each step of a run."""
    curve = Curve(list(rates.steps), rates.rates).thinned(RATE_BUCKETS)
    points = list(zip(map(float, curve.steps), curve.values, strict=True))
    steps = Axis("optimizer step", low=0, high=rates.total_steps)
    title = f"Learning rate: {percent(rates.warmup_share, 0)} of the run is warm-up"
    return line_chart(title, steps, Axis("learning rate"), [Series("learning rate", points)])


def range_chart(test: RangeTest) -> str:
    """Draw the losses of a learning-rate range test."""
    points = list(zip(test.rates, test.losses, strict=True))
    title = f"Steps with rising learning rates: {test.suggestion:.1e} is suggested"
    rate = Axis("learning rate", "{:.0e}".format, low=test.rates[0], high=test.rates[-1], log=True)
    note = "moving average of the loss, with one batch per step"
    return line_chart(title, rate, Axis("loss per token"), [Series("loss", points)], note, zero=False)


def diagnosis_page(
    name: str, verdict: str, findings: Sequence[Finding], pairs: Sequence[Fact], charts: Sequence[str] = ()
) -> str:
    """Return the page of findings.

    Args:
        name: name of the corpus.
        verdict: whether training should start.
        findings: findings, worst finding first.
        pairs: facts about the examined data and about the resources that training needs.
        charts: charts of the planned training.
    """
    utterances = list(_worst_first(findings))
    indices = {id(utterance): index for index, utterance in enumerate(utterances)}
    clips = record(utterances, range(len(utterances)), AUDIO_BYTES)
    counts = [sum(finding.severity == severity for finding in findings) for severity in Severity]
    tiles = [
        figure(f"{severity.name.lower()}s", f"{severity.name.capitalize()}s", f"{count:,}", [], main=not severity)
        for severity, count in zip(Severity, counts, strict=True)
    ]
    title = f"Doctor: {name}"
    body = [
        f'<main><header><h1>{escape(title)}</h1><p>{escape(verdict)}</p><div class="headline">{"".join(tiles)}</div>',
        f"{facts(pairs)}</header><section><h2>Findings</h2>",
        "" if findings else "<p>None.</p>",
        *(_section(finding, indices, clips) for finding in findings),
        "</section>",
        *(["<section><h2>Plan</h2>", *charts, "</section>"] if charts else []),
        "</main>",
    ]
    return page(title, "\n".join(body), ["listen.js"], attachments=attachments({"clip": clips.audio}))


def _worst_first(findings: Sequence[Finding]) -> Iterator[Utterance]:
    """Yield each shown utterance once: the worst case of each finding, then the second worst of each, and so on."""
    seen: set[int] = set()
    for cases in zip_longest(*(finding.cases[:SHOWN] for finding in findings)):
        for case in cases:
            if case is not None and id(case.utterance) not in seen:
                seen.add(id(case.utterance))
                yield case.utterance


def _section(finding: Finding, indices: dict[int, int], clips: Clips) -> str:
    severity = finding.severity.name.lower()
    parts = [
        f'<h3><span class="severity {severity}">{severity}</span>{escape(finding.kind)}</h3>',
        f"<p>{escape(finding.message)}</p><p>{escape(finding.advice)}</p>",
    ]
    if finding.cases:
        rows = "".join(_row(case, indices[id(case.utterance)], clips) for case in finding.cases[:SHOWN])
        heads = "".join(f'<th scope="col">{head}</th>' for head in ("split", "id", "detail", "text", "audio"))
        parts.append(
            f'<div class="table-scroll cases" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table></div>"
        )
    if (more := len(finding.cases) - SHOWN) > 0:
        parts.append(f'<p class="note">and {more:,} more</p>')
    return "".join(parts)


def _row(case: Case, index: int, clips: Clips) -> str:
    utterance = case.utterance
    cells = (case.split, utterance.id, case.detail, utterance.text)
    texts = "".join(f"<td><bdi>{AFTER_WHICH_TO_BREAK.sub('<wbr>', escape(cell))}</bdi></td>" for cell in cells)
    if index in clips.audio:
        label = escape(f"Play {utterance.id}")
        audio = f'<button type="button" class="listen" data-clip="clip-{index}" aria-label="{label}">Play</button>'
    else:
        audio = '<span class="note">cannot be played</span>' if index in clips.problems else ""
    return f"<tr>{texts}<td>{audio}</td></tr>"
