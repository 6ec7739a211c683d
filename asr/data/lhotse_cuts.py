"""The text of lhotse's cuts, and the channels to which it belongs; a cut has its supervisions, each with a text."""

from collections.abc import Mapping
from typing import Any

from asr.errors import InputError

SUPERVISION_TOLERANCE_SECONDS = 0.002  # as in lhotse's validate_for_asr


def joined_text(cut: Mapping[str, Any]) -> str:
    """Join the texts of a cut's supervisions in the order of their starts.

    Raises:
        InputError: a supervision with a text is not completely inside the cut.
    """
    texts = []
    for part in sorted(cut["supervisions"], key=lambda part: float(part["start"])):
        if not (text := (part.get("text") or "").strip()):
            continue
        start, duration = float(part["start"]), float(part["duration"])
        if min(start, float(cut["duration"]) - start - duration) < -SUPERVISION_TOLERANCE_SECONDS:
            span = f"from {start:g} to {start + duration:g} s of a cut of {float(cut['duration']):g} s"
            cure = "Cut at supervisions: CutSet.trim_to_supervisions"
            raise InputError(f"a supervision with a text must lie within its cut; it is {span}. {cure}")
        texts.append(text)
    return " ".join(texts)


def text_channels(cut: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the channels to which the text of a cut, or of one of its supervisions, belongs; () if none are named."""
    texts = [part for part in cut.get("supervisions", ()) if part.get("text")]
    return min((channels for part in (cut, *texts) if (channels := channels_of(part))), key=len, default=())


def channels_of(part: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the channels of a cut or a supervision; () if it names none."""
    channel = part.get("channel")
    return tuple(channel) if isinstance(channel, list) else () if channel is None else (channel,)
