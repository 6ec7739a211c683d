"""The page that turns recordings into text, whoever recognises them: a server, or the browser itself."""

from collections.abc import Sequence

from asr.web.page import asset, escape

# The script of the page itself comes after these.
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
    """Make the body of the page.

    Args:
        about: what it says of itself at its head; HTML.
        hint: what it can be given, in sentences.
        examples: addresses and names of recordings that it offers.
        without: what to do where there is no JavaScript; HTML.
        buttons: more that use the microphone, of class "microphone"; HTML.
        sections: more that it shows, above the transcript; HTML.
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
