"""One self-contained page: style, scripts and data inline, and a policy that forbids the network.

    page("Title", body, scripts=["chart.js", "player.js"], data={"report": {...}}, attachments={"clip-0": base64})

`body` is HTML; whatever comes from a user goes through `escape` first. A script finds its data by id:
`JSON.parse(document.getElementById("report").textContent)`. No `style=` or `onclick=` attribute works under the policy:
use the classes of style.css, addEventListener, and `element.style` from scripts.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

# What a page may load. The hashes of its own style and scripts are added: whatever else got in would not run.
POLICY = {
    "default-src": "'none'",
    "img-src": "data:",
    "media-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
}


def visible(text: str) -> str:
    r"""Escape what UTF-8 cannot hold (half a surrogate pair, an undecoded byte), as \udcff."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def escape(value: object) -> str:
    """Make a text safe inside elements and quoted attributes."""
    return html.escape(visible(str(value)), quote=True)


def to_json(value: object) -> str:
    """Write JSON that may stand in a script element: in ASCII, and without a `<` that could end it.

    Raises:
        ValueError: there is a NaN or an infinity in it, which JSON does not know.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Read a style or script of this folder."""
    return (files("asr.web") / "assets" / name).read_text(encoding="utf-8")


def page(
    title: str,
    body: str,
    scripts: Sequence[str] = (),
    data: Mapping[str, object] | None = None,
    attachments: Mapping[str, str] | None = None,
    allow: Mapping[str, str] | None = None,
) -> str:
    """Put a page together.

    Args:
        title: shown by the browser's tab.
        body: HTML, already escaped.
        scripts: files of this folder, run in this order once the body and the data are there.
        data: JSON-able values, by the id of their element.
        attachments: base64 texts, by the id of their element; at the very end, and not parsed when the page opens.
        allow: more of the policy, for a page that a server hands out: {"connect-src": "'self'"}.
    """
    style = asset("style.css")
    code = [asset(name) for name in scripts]
    holders = [
        f'<script type="application/json" id="{escape(name)}">{to_json(value)}</script>'
        for name, value in (data or {}).items()
    ]
    texts = [
        f'<script type="text/plain" id="{escape(name)}">{content}</script>'
        for name, content in (attachments or {}).items()
    ]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, code, allow or {})}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            body,
            *holders,
            *(f"<script>{script}</script>" for script in code),
            *texts,
            "</body>",
            "</html>",
            "",
        ]
    )


def _policy(style: str, code: Sequence[str], allow: Mapping[str, str]) -> str:
    rules = dict(POLICY)
    rules["style-src"] = _hash(style)
    rules["script-src"] = " ".join(map(_hash, code)) or "'none'"
    for name, sources in allow.items():
        before = rules.get(name, "'none'")
        rules[name] = sources if before == "'none'" else f"{before} {sources}"
    return "; ".join(f"{name} {sources}" for name, sources in rules.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}'"
