"""A self-contained page: style, scripts and data inline, and a policy that forbids the network.

    page("Title", body, scripts=["chart.js", "player.js"], data={"report": {...}}, attachments={"clip-0": base64})

`body` is HTML; texts of users must pass through `escape` first. A script finds its data by id:
`JSON.parse(document.getElementById("report").textContent)`. The policy disables `style=` and `onclick=` attributes: use
the classes of style.css, addEventListener, and `element.style` in scripts.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

# A page may load only this. Hashes of the page's style and scripts are added, so that no other style or script can run.
POLICY = {
    "default-src": "'none'",
    "img-src": "data:",
    "media-src": "blob:",
    "base-uri": "'none'",
    "form-action": "'none'",
}


def visible(text: str) -> str:
    r"""Escape characters that UTF-8 cannot represent (lone surrogates, undecoded bytes), as \udcff."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def escape(value: object) -> str:
    """Escape a text for elements and quoted attributes."""
    return html.escape(visible(str(value)), quote=True)


def to_json(value: object) -> str:
    """Return JSON that is safe in a script element: ASCII, without a `<` that could end it.

    Raises:
        ValueError: the value contains NaN or infinity, which JSON cannot represent.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return a style or script of this folder."""
    return (files("asr.apps.web") / "assets" / name).read_text(encoding="utf-8")


def page(
    title: str,
    body: str,
    scripts: Sequence[str] = (),
    data: Mapping[str, object] | None = None,
    attachments: Mapping[str, str] | None = None,
    allow: Mapping[str, str] | None = None,
) -> str:
    """Return a page.

    Args:
        title: title in the browser's tab.
        body: escaped HTML.
        scripts: files of this folder, run in this order after the body and the data are loaded; scrollable.js follows.
        data: values that JSON can represent, by the id of their element.
        attachments: base64 texts at the end of the page, by the id of their element; not parsed when the page opens.
        allow: additions to the policy, for a page from a server: {"connect-src": "'self'"}.
    """
    style = asset("style.css")
    code = [asset(name) for name in (*scripts, "scrollable.js")]
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
