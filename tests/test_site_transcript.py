"""The scripts of asr.export --web turn log_probs into asr's transcripts: tested in a real browser."""

import unicodedata
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from asr.apps.export.site import NORMALIZERS as SITE_NORMALIZERS
from asr.apps.export.site import with_plain_spaces
from asr.base.text.normalize import get_normalizer
from asr.components.decode.greedy import Greedy
from asr.components.program.runtime import LogProbs
from asr.core.recognition.chunks import cut_at_pauses, pause_in_blanks
from asr.core.recognition.confidence import Calibration
from asr.core.recognition.long_form import Segment
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.timing import CHARACTER_SECONDS
from tests.browser import browser  # noqa: F401
from tests.conftest import ROOT
from tests.files import serving_files

FRAME_SECONDS = 0.04
PIECES = ["", " abandon", "b", "c d", "É", "'", " ", "ﬁ", "\u2003x", "e\u0301", ""]
MAKE = """async ([logProbs, vocabSize, duration, settings]) => {
  const { Frames, transcript } = await import("/transcript.js"), frames = new Frames();
  const count = logProbs.length / vocabSize, half = Math.floor(count / 2), rows = Float32Array.from(logProbs);
  frames.add(rows, vocabSize, 0, half);
  frames.add(rows, vocabSize, half, count);
  return transcript(frames, duration, settings);
}"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:  # noqa: F811
    with serving_files(ROOT / "asr" / "apps" / "web" / "assets") as address:
        page = browser.new_page()
        page.goto(f"{address}/transcript.js")
        yield page


def expected(
    log_probs: Tensor, duration: float, normalizer: str, calibration: Calibration, most: int
) -> dict[str, Any]:
    """Return the transcript of log_probs (T', V) by asr's Recognizer."""
    tokenizer, normalize = (
        SimpleNamespace(pieces=PIECES, names=PIECES, vocab_size=len(PIECES)),
        get_normalizer(normalizer),
    )
    head = LogProbs(len(PIECES))
    model: Any = SimpleNamespace(
        normalize=normalize,
        tokenizer=tokenizer,
        head=head,
        frame_seconds=FRAME_SECONDS,
        device=torch.device("cpu"),
    )
    recognizer = Recognizer(model, Greedy(head, tokenizer, normalize), calibration)  # type: ignore[arg-type]
    segments = cut_at_pauses([(0, log_probs)], most, pause_in_blanks)
    placed = (Segment(frame * FRAME_SECONDS, piece) for frame, piece in segments)
    return recognizer.transcript(duration, placed).as_dict()


@pytest.mark.parametrize("normalizer", ["basic", "as_written"])
@pytest.mark.parametrize(
    ("num_frames", "blank", "most"),
    [
        pytest.param(300, 4.0, 1000, id="a recording of one segment"),
        pytest.param(300, 4.0, 40, id="segments that end in pauses"),
        pytest.param(300, -30.0, 40, id="segments without a pause"),
        pytest.param(300, 1.0, 7, id="short segments"),
        pytest.param(1, 30.0, 40, id="only blanks"),
        pytest.param(0, 0.0, 40, id="no frame"),
    ],
)
def test_words_times_confidence_and_score_equal_those_of_asr(
    page: Any, normalizer: str, num_frames: int, blank: float, most: int
) -> None:
    generator = torch.Generator().manual_seed(num_frames + most)
    logits = 4 * torch.randn(num_frames, len(PIECES), generator=generator)
    logits[:, 0] += blank
    again = torch.rand(num_frames, generator=generator) < 0.4  # frames that repeat a token
    for frame in range(1, num_frames):
        if again[frame]:
            logits[frame] = logits[frame - 1]
    log_probs, calibration = logits.log_softmax(dim=-1), Calibration(1.7, -0.3)
    duration = num_frames * FRAME_SECONDS - 0.01
    settings = {
        "pieces": [with_plain_spaces(piece) for piece in PIECES],
        "normalizer": normalizer,
        "slope": calibration.slope,
        "intercept": calibration.intercept,
        "frame_seconds": FRAME_SECONDS,
        "character_seconds": CHARACTER_SECONDS,
        "segment_frames": most,
    }
    actual = page.evaluate(MAKE, [log_probs.flatten().tolist(), len(PIECES), duration, settings])
    wanted = expected(log_probs, duration, normalizer, calibration, most)
    assert len(wanted["words"]) > 20 or blank > 20 or not num_frames
    assert actual.keys() == wanted.keys()
    assert actual["text"] == wanted["text"]
    for key in ("duration", "confidence", "score"):
        assert actual[key] == pytest.approx(wanted[key], abs=2e-3)
    assert [word["text"] for word in actual["words"]] == [word["text"] for word in wanted["words"]]
    for word, other in zip(actual["words"], wanted["words"], strict=True):
        assert [word["start"], word["end"]] == pytest.approx([other["start"], other["end"]], abs=1.1e-3)
        assert word["confidence"] == pytest.approx(other["confidence"], abs=2e-4)
    assert [alternative["text"] for alternative in actual["alternatives"]] == [
        alternative["text"] for alternative in wanted["alternatives"]
    ]


@pytest.mark.parametrize("normalizer", SITE_NORMALIZERS)
def test_every_character_is_normalised_as_in_python(page: Any, normalizer: str) -> None:
    """Compare the known characters of most Unicode blocks; ideographs and most of Hangul are left out.

    White space is left out because no word contains it.
    """
    blocks = (range(0x20, 0x3400), range(0xA480, 0xAC20), range(0xF900, 0x10000), range(0x1D000, 0x1F200))
    characters = [chr(code) for block in blocks for code in block]
    characters = [
        character for character in characters if unicodedata.category(character) != "Cn" and not character.isspace()
    ]
    normalize = get_normalizer(normalizer)
    words = [form.format(character) for form in ("a'{}'B", "a{}b", "ש{}ש", "字{}क्") for character in characters]
    actual = page.evaluate(
        f"async (words) => {{ const {{ NORMALIZERS }} = await import('/transcript.js');"
        f"return words.split('\\n').map((word) => NORMALIZERS.{normalizer}(word).join(' ')).join('\\n'); }}",
        "\n".join(words),
    ).split("\n")
    different = [
        (word, normalized, normalize(word))
        for word, normalized in zip(words, actual, strict=True)
        if normalized != normalize(word)
    ]
    assert different == []
