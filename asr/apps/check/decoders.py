"""What every decoder must do: transcripts do not depend on the batch, and words lie within the audio."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn

from asr.apps.check.network import SAMPLE_RATE, SMALL, model_of, overridden
from asr.base.settings.conf import default_settings, names
from asr.core.build import build_decoder, component
from asr.core.recognition.confidence import UNCALIBRATED
from asr.core.recognition.model import Model
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.transcript import Transcript
from asr.errors import InputError

MAX_SECONDS = 2.0  # limit of a decoder in the check, which one recording exceeds
RARER = 9.0  # by how much the logits of blanks and spaces are lowered, so that texts of new weights have letters


def recognizer_with(decode: Mapping[str, Any]) -> Recognizer:
    """Make a small recogniser with new weights and this decoder, with the first head that fits the decoder."""
    encoder = overridden(default_settings("encoder", "conformer_xs"), SMALL)
    needs = component("decode", decode).func.needs  # type: ignore[attr-defined]  # declared in interfaces.Decoder
    for name in names("head"):
        head = overridden(default_settings("head", name), SMALL)
        model = model_of(encoder, head).eval()
        if all(getattr(model.head, need, None) is not None for need in needs):
            with_rare_blanks(model)
            return Recognizer(model, build_decoder({"decode": decode, "head": head}, model), UNCALIBRATED)
    must = f"a head in conf/head must have the needs of decode={decode['name']} ({', '.join(needs)})"
    raise InputError(f"{must}; none has.")


def with_rare_blanks(model: Model) -> None:
    """Make blanks and spaces rare in the output of new weights."""
    size = model.tokenizer.vocab_size
    sizes = (size, size + len(getattr(model.head, "durations", ())))
    with torch.no_grad():
        for layer in model.head.modules():  # type: ignore[attr-defined]
            if isinstance(layer, nn.Linear) and layer.out_features in sizes and layer.bias is not None:
                layer.bias[:2] -= RARER


def check_transcripts(recognizer: Recognizer, recording: Tensor) -> None:
    """Check that words are in order, lie within the audio, have confidences, and do not depend on the batch.

    One recording has no samples, and one is longer than the decoder's maximum duration.

    Args:
        recognizer: contains the decoder.
        recording: waveform (S,) of about a second at SAMPLE_RATE.
    """
    recognizer.decode.max_seconds = min(recognizer.decode.max_seconds or MAX_SECONDS, MAX_SECONDS)
    recordings = [recording, recording[:9_000], torch.zeros(0), torch.cat([recording, torch.zeros(8_000)] * 3)]
    transcripts = _transcribed(recognizer, recordings)
    for samples, transcript in zip(recordings, transcripts, strict=True):
        starts = [word.start for word in transcript.words]
        _check(starts == sorted(starts), "words must be in the order of their times", starts)
        for word in transcript.words:
            _check(0 <= word.start < word.end <= len(samples) / SAMPLE_RATE, "a word must lie within the audio", word)
            _check(0 <= word.confidence <= 1, "a confidence must be from 0 to 1", word)
        [alone] = _transcribed(recognizer, [samples])
        _check_equal(alone, transcript)
    _check(transcripts[2].text == "", "the text of a recording without samples must be empty", transcripts[2].text)


def _transcribed(recognizer: Recognizer, recordings: Sequence[Tensor]) -> list[Transcript]:
    nbest = min(recognizer.decode.max_hypotheses, 3)
    transcripts: list[Transcript] = recognizer.transcribe(list(recordings), sample_rate=SAMPLE_RATE, nbest=nbest)
    return transcripts


def _check_equal(alone: Transcript, in_batch: Transcript) -> None:
    """Check the transcript of a recording alone and in a batch; numbers may differ by rounding."""
    pair = alone, in_batch
    words = [[replace(word, confidence=0.0) for word in transcript.words] for transcript in pair]
    texts = [[hypothesis.text for hypothesis in transcript.alternatives] for transcript in pair]
    _check(words[0] == words[1], "words must be the same alone and in a batch", words)
    _check(texts[0] == texts[1], "hypotheses must be the same alone and in a batch", texts)
    confidences, others = ([word.confidence for word in transcript.words] for transcript in pair)
    same = all(isclose(*both, rel_tol=1e-4, abs_tol=1e-6) for both in zip(confidences, others, strict=True))
    _check(same, "confidences must be the same alone and in a batch", (confidences, others))
    scores, others = ([hypothesis.score for hypothesis in transcript.alternatives] for transcript in pair)
    same = all(isclose(*both, rel_tol=1e-5, abs_tol=1e-12) for both in zip(scores, others, strict=True))
    _check(same, "scores must be the same alone and in a batch", (scores, others))


def _check(holds: bool, must: str, given: object) -> None:
    if not holds:
        raise InputError(f"{must}; got {given}.")
