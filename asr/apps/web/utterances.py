"""The utterances of a report: filters, and the element in which scripts create the table."""

import base64
from collections.abc import Mapping

from asr.apps.web.page import escape

# A script comes after the scripts that it uses.
SCRIPTS = (
    "element.js",
    "chart.js",
    "picture.js",
    "posterior.js",
    "player.js",
    "alignment.js",
    "table.js",
    "detail.js",
    "report.js",
)


def section(kinds: Mapping[str, str], with_subsets: bool, with_speakers: bool) -> str:
    """Return the filters, and the element for the table of report.js.

    Args:
        kinds: label of each kind of utterances, by its key in report.js.
        with_subsets: whether there are several subsets.
        with_speakers: whether speakers are known.
    """
    options = "".join(f'<option value="{escape(name)}">{escape(label)}</option>' for name, label in kinds.items())
    everything = '<option value="">all</option>'
    return "".join(
        [
            '<section><h2 id="all-utterances">Utterances</h2>',
            '<form id="filters" class="filters no-print" role="search">',
            '<label class="grow">Search',
            '<input name="search" type="search" placeholder="id, reference, hypothesis" autocomplete="off"></label>',
            f'<label>Subset<select name="subset">{everything}</select></label>' if with_subsets else "",
            f'<label>Speaker<select name="speaker">{everything}</select></label>' if with_speakers else "",
            f'<label>Show<select name="kind">{everything}{options}</select></label>',
            '<label>Errors, at least<input name="least" type="number" min="0" step="1" inputmode="numeric"></label>',
            '<button type="reset">Reset</button></form>',
            '<output id="found" aria-live="polite"></output>',
            '<div id="utterances"><noscript><p>The table needs JavaScript, which this browser does not run.</p>',
            "</noscript></div></section>",
        ]
    )


def attachments(kinds: Mapping[str, Mapping[int, bytes]]) -> dict[str, str]:
    """Return the attachments of each kind (`clip`, `log-mel`, `posterior`) by the names that detail.js reads."""
    return {
        f"{kind}-{row}": base64.b64encode(content).decode()
        for kind, contents in kinds.items()
        for row, content in contents.items()
    }
