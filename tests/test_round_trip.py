"""A tokenizer that changes texts is reported before a model learns the changed texts."""

import logging
from pathlib import Path

import pytest

from asr.apps.doctor.texts import round_trip_findings
from asr.components.tokenizer.char import Char
from asr.core.build import build_tokenizer
from asr.core.data.index_cache import IndexCache
from asr.core.data.manifest import Utterance, write_manifest
from asr.core.data.round_trip import MAX_CHECKED, changed_by, warn_of_changes
from asr.core.data.utterances import Utterances
from tests.conftest import ROOT
from tests.refusals import mentions

PARAKEET = ROOT.parent / "shared" / "models" / "published" / "parakeet-tdt-0.6b-v3" / "tokenizer.json"


class Joining(Char):
    """A tokenizer that drops the space before a digit, as that of parakeet-tdt-0.6b-v3 does."""

    def decode(self, tokens):  # type: ignore[no-untyped-def]
        text = super().decode(tokens)
        return "".join(a for a, b in zip(text, [*text[1:], ""], strict=True) if not (a == " " and b.isdigit()))


def manifest(folder: Path, texts: list[str]) -> Utterances:
    path = folder / "train.jsonl"
    write_manifest(path, [Utterance(f"{n}.wav", 1.0, text, f"u{n}") for n, text in enumerate(texts)])
    return IndexCache(folder / "cache").utterances(path)


def test_a_run_names_the_first_text_that_the_tokenizer_changes_and_how_many_were_checked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = ["we met in 2025", "nothing", "in 7"] * 1000
    tokenizer = Joining()
    tokenizer.fit(texts)
    with caplog.at_level(logging.WARNING):
        warn_of_changes(manifest(tmp_path, texts), tokenizer)
    [message] = caplog.messages
    assert mentions(message, f"of {MAX_CHECKED:,} texts")
    assert "'we met in 2025', which becomes 'we met in2025' (id 'u0')" in message
    assert "tokenizer=" in message


def test_a_tokenizer_that_returns_each_text_is_not_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Char()
    tokenizer.fit(["we met in 2025"])
    warn_of_changes(manifest(tmp_path, ["we met in 2025", "uncovered ß"]), tokenizer)
    assert caplog.messages == []


def test_the_doctor_reports_the_texts_that_the_tokenizer_changes() -> None:
    tokenizer = Joining()
    tokenizer.fit(["we met in 2025"])
    utterances = [Utterance("a.wav", 1.0, text, text) for text in ("we met", "in 2025")]
    [finding] = round_trip_findings({"train": utterances}, tokenizer)
    assert [case.detail for case in finding.cases] == ["in 2025 becomes in2025"]
    assert round_trip_findings({"train": utterances[:1]}, tokenizer) == []


@pytest.mark.skipif(not PARAKEET.exists(), reason="the published tokenizer is not beside the checkout")
def test_the_published_tokenizer_of_parakeet_changes_texts_with_numbers() -> None:
    pytest.importorskip("tokenizers")
    tokenizer = build_tokenizer({"tokenizer": {"name": "huggingface", "vocab_size": 8193, "blank_piece": "<blank>"}})
    tokenizer.load({"tokenizer.json": PARAKEET.read_bytes()})
    assert changed_by(tokenizer, "We met there.") is None
    assert "in2025" in str(changed_by(tokenizer, "We met in 2025."))
