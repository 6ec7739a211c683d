"""The page that turns recordings into text; the model runs on a server or in the browser."""

from collections.abc import Sequence

from asr.apps.web.page import asset, escape

# The script that recognises recordings (serve.js or site.js) comes after these.
SCRIPTS = ("element.js", "picture.js", "player.js", "microphone.js", "recorder.js", "demo.js")
EXAMPLE = '<button type="button" class="example" data-address="{address}" data-name="{name}">{title}</button>'


def demo_body(
    about: str,
    hint: str,
    examples: Sequence[tuple[str, str]],
    *,
    without: str = "",
    buttons: str = "",
    sections: str = "",
) -> str:
    """Return the body of the page.

    Args:
        about: description at the head of the page; HTML.
        hint: accepted inputs, in sentences.
        examples: addresses and names of example recordings.
        without: advice for browsers without JavaScript; HTML.
        buttons: further buttons that use the microphone, of class "microphone"; HTML.
        sections: further sections above the transcript; HTML.
    """
    offered = [
        EXAMPLE.format(
            address=escape(address),
            name=escape(name),
            title=escape("Example" if len(examples) == 1 else f"Example: {name}"),
        )
        for address, name in examples
    ]
    return asset("demo.html").format(
        about=about,
        hint=escape(hint),
        examples="\n".join(offered),
        without=without,
        buttons=buttons,
        sections=sections,
    )
