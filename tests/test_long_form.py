"""Recordings of any length: the form of the input does not change the transcript; faults are reported in one line."""

import itertools
import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import soundfile
import torch
from torch import Tensor

from asr.base.audio.silence import cut_at_silences
from asr.core.data.batch import Rejected
from asr.core.data.batch_plan import BatchBounds
from asr.core.data.manifest import Utterance
from asr.core.recognition.chunks import ChunkBounds
from asr.core.recognition.inference import Inference
from asr.core.recognition.long_form import Segment, at_silences
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.recordings import whole_file
from asr.core.recognition.transcript import Alternative, Transcript
from asr.errors import AudioError, InputError
from asr.interfaces import NO_BIASING, Encoded, Hypothesis, Tunable
from tests.listener import listener
from tests.refusals import check_refusal, refused
from tests.tones import SAMPLE_RATE, sentences, speak

SHORT = ChunkBounds(chunk_seconds=3.0, context_seconds=0.5)
BATCHES = BatchBounds(batch_seconds=10, max_utterances=8)
SEGMENTERS = {"chunks": None, "silence": at_silences}
WAYS = pytest.mark.parametrize("way", sorted(SEGMENTERS))


def inference(way: str = "chunks", nbest: int = 1, bounds: ChunkBounds = SHORT) -> Inference:
    return Inference(BATCHES, bounds, SEGMENTERS[way], nbest)


def recording(texts: list[str], pause: float = 0.4, seed: int = 0) -> Tensor:
    """Synthesise texts with pauses in noise, rounded to 16 bits, so that a file loses nothing."""
    silence = torch.zeros(round(pause * SAMPLE_RATE))
    waveform = torch.cat([part for text in texts for part in (torch.from_numpy(speak(text)), silence)])
    noise = 0.003 * torch.randn(len(waveform), generator=torch.Generator().manual_seed(seed))
    return ((waveform + noise) * 2**15).round() / 2**15


def write(path: Path, waveform: Tensor) -> Path:
    soundfile.write(path, waveform.numpy(), SAMPLE_RATE, subtype="PCM_16")
    return path


TEXTS = sentences(16, seed=4)


@pytest.fixture(scope="module")
def recognizer() -> Recognizer:
    return listener()


def recognized(recognizer: Recognizer, utterances: list[Utterance], options: Inference) -> dict[str, Transcript]:
    results = list(recognizer.recognize(utterances, options))
    assert not [result for result in results if isinstance(result, Rejected)]
    return {utterance.id: transcript for utterance, transcript in results}  # type: ignore[misc]


def same(transcript: Transcript, other: Transcript, shift: float = 0.0) -> None:
    """Compare transcripts; confidences may differ by 1e-4, because the order of summation depends on the batch."""
    assert transcript.text == other.text
    assert transcript.duration == pytest.approx(other.duration)
    for mine, theirs in zip(transcript.words, other.words, strict=True):
        assert (mine.start, mine.end) == pytest.approx((theirs.start + shift, theirs.end + shift), abs=1e-6)
        assert mine.confidence == pytest.approx(theirs.confidence, abs=1e-4)


@WAYS
def test_every_word_of_a_long_recording_is_recognised(recognizer: Recognizer, way: str) -> None:
    [transcript] = recognizer.transcribe([recording(TEXTS)], inference(way), sample_rate=SAMPLE_RATE)
    assert transcript.text == " ".join(TEXTS)


@WAYS
@pytest.mark.parametrize("pause", [0.2, 1.0])
def test_the_transcript_does_not_depend_on_the_form_of_the_input(
    recognizer: Recognizer, way: str, pause: float, tmp_path: Path
) -> None:
    """Recordings are given alone, in a batch, by path, as a waveform, and as a segment of a longer file."""
    options = inference(way)
    for number, texts in enumerate((TEXTS[:1], TEXTS[:2], TEXTS[:9], [])):
        waveform = recording(texts, pause) if texts else torch.zeros(300)
        [alone] = recognizer.transcribe([waveform], options, sample_rate=SAMPLE_RATE)
        assert alone.text == " ".join(texts)
        path = write(tmp_path / f"{number}.wav", waveform)
        others: list[Path | Tensor] = [recording(TEXTS[3:7]), waveform, path, recording(TEXTS[5:6]), torch.zeros(0)]
        transcripts = recognizer.transcribe(others, options, sample_rate=SAMPLE_RATE)
        same(transcripts[1], alone)
        same(transcripts[2], alone)
        around = write(tmp_path / "around.wav", torch.cat([recording(TEXTS[9:10]), waveform, recording(TEXTS[10:])]))
        offset = len(recording(TEXTS[9:10])) / SAMPLE_RATE
        segment = Utterance(str(around), len(waveform) / SAMPLE_RATE, "", "part", offset=offset)
        same(recognized(recognizer, [segment, whole_file(path, "whole")], options)["part"], alone)


@WAYS
@pytest.mark.parametrize("samples", [-641, -1, 0, 1, 639, 640, 641, 3 * SAMPLE_RATE])
def test_there_is_no_discontinuity_where_chunks_begin(recognizer: Recognizer, way: str, samples: int) -> None:
    waveform = recording([*TEXTS[:3], "ab", "cd", "ef"])[: 3 * SAMPLE_RATE + samples]
    [expected] = recognizer.transcribe([waveform], inference(bounds=ChunkBounds(60.0, 4.0)), sample_rate=SAMPLE_RATE)
    [transcript] = recognizer.transcribe([waveform], inference(way), sample_rate=SAMPLE_RATE)
    assert transcript.text == expected.text
    if way == "chunks":
        same(transcript, expected)


def test_recordings_of_mixed_lengths_are_returned_in_the_order_given(recognizer: Recognizer) -> None:
    waveforms = [recording(TEXTS[number : number + 1 + 4 * (number % 2)]) for number in range(8)]
    transcripts = recognizer.transcribe(waveforms, inference(), sample_rate=SAMPLE_RATE)
    expected = [" ".join(TEXTS[number : number + 1 + 4 * (number % 2)]) for number in range(8)]
    assert [transcript.text for transcript in transcripts] == expected
    assert [transcript.duration for transcript in transcripts] == [
        len(waveform) / SAMPLE_RATE for waveform in waveforms
    ]


@WAYS
def test_the_reported_progress_sums_to_the_duration(recognizer: Recognizer, way: str, tmp_path: Path) -> None:
    """The tolerance is one frame of 40 ms for each report, and one more for the audio after the last frame."""
    paths = [write(tmp_path / f"{count}.wav", recording(TEXTS[:count])) for count in (1, 2, 12)]
    utterances = [whole_file(path, path.stem) for path in paths]
    progress: list[float] = []
    list(recognizer.recognize(utterances, inference(way), progress.append))
    assert all(seconds >= 0 for seconds in progress)
    duration = sum(utterance.duration for utterance in utterances)
    assert sum(progress) == pytest.approx(duration, abs=0.04 * (len(progress) + 1))
    assert len(progress) > len(paths), "progress in a long recording is reported in parts"


def test_an_empty_waveform_has_an_empty_transcript(recognizer: Recognizer) -> None:
    for samples in (0, 1, 399):
        [transcript] = recognizer.transcribe([torch.zeros(samples)], sample_rate=SAMPLE_RATE)
        assert transcript == Transcript((), (Alternative("", 0.0),), samples / SAMPLE_RATE, speech=False)
        assert transcript.confidence is None


@pytest.mark.parametrize("kind", [torch.float64, torch.float16])
def test_waveforms_may_have_any_precision(recognizer: Recognizer, kind: torch.dtype) -> None:
    waveforms = [recording(TEXTS[:1]).to(kind), recording(TEXTS[:8]).to(kind).requires_grad_()]
    transcripts = recognizer.transcribe(waveforms, inference(), sample_rate=SAMPLE_RATE)
    assert [transcript.text for transcript in transcripts] == [" ".join(TEXTS[:1]), " ".join(TEXTS[:8])]


@pytest.mark.parametrize(
    ("unfit", "message"),
    [
        (torch.tensor([0.0, math.nan, math.inf]), "recording 1 ... 2 samples ... NaN or beyond"),
        (1e30 * torch.ones(1000), "recording 1 ... 1000 samples ... NaN or beyond"),
        (1e300 * torch.ones(1000, dtype=torch.float64), "recording 1 ... 1000 samples ... NaN or beyond"),
        (torch.zeros(2, 100), "recording 1 ... the shape (2, 100)"),
        (torch.zeros(100, dtype=torch.int16), "recording 1 ... int16"),
        (None, "recording ... 1; got None"),
    ],
)
def test_the_error_for_an_invalid_recording_names_its_number(
    recognizer: Recognizer, unfit: Tensor, message: str
) -> None:
    with refused(InputError, message):
        recognizer.transcribe([torch.zeros(1000), unfit], sample_rate=SAMPLE_RATE)


def overflowing(utterances: int, net: object, given: object, encoded: Encoded) -> Encoded:
    """Replace the encoder's output for the first `utterances` of a batch with NaN; this is a forward hook."""
    nothing = torch.full_like(encoded.out[:utterances], math.nan)
    return encoded._replace(out=torch.cat([nothing, encoded.out[utterances:]]))


@WAYS
@pytest.mark.parametrize("part", ["encoder", "head"])
def test_a_net_with_nan_outputs_causes_an_error_instead_of_an_empty_transcript(part: str, way: str) -> None:
    broken = listener()
    if part == "encoder":
        broken.model.encoder.register_forward_hook(partial(overflowing, 64))  # type: ignore[attr-defined]
    else:
        broken.model.head.log_probs = partial(torch.full_like, fill_value=math.nan)  # type: ignore[method-assign]
    for texts in (TEXTS[:1], TEXTS):
        with refused(AudioError, "recording 0 ... output; got NaN"):
            broken.transcribe([recording(texts)], inference(way), sample_rate=SAMPLE_RATE)


def test_an_utterance_with_non_finite_outputs_is_rejected_and_the_others_are_recognised(
    tmp_path: Path,
) -> None:
    loud = listener()
    loud.model.encoder.register_forward_hook(partial(overflowing, 1))  # type: ignore[attr-defined]
    utterances = []
    for name in ("a", "b"):
        sound = recording(TEXTS[:1])
        soundfile.write(tmp_path / f"{name}.wav", sound.numpy(), 16000, subtype="FLOAT")
        utterances.append(Utterance(str(tmp_path / f"{name}.wav"), len(sound) / 16000, "", name))
    bad, good = loud.recognize(utterances)
    assert isinstance(bad, Rejected)
    check_refusal(bad.reason, "a.wav ... output; got NaN")
    assert good[0].id == "b"  # type: ignore[index]


# ---- recordings that become unreadable


def truncated(path: Path) -> Path:
    soundfile.write(path, recording(TEXTS * 2).numpy(), SAMPLE_RATE)
    path.write_bytes(path.read_bytes()[:-5000])
    return path


def with_sample(value: float, path: Path) -> Path:
    waveform = recording(TEXTS * 2)
    waveform[-100] = value
    soundfile.write(path, waveform.numpy(), SAMPLE_RATE, subtype="FLOAT")
    return path


with_nan, with_a_huge_sample = partial(with_sample, math.nan), partial(with_sample, 1e30)


@WAYS
@pytest.mark.parametrize(
    ("spoil", "suffix", "message"),
    [
        (truncated, "flac", "bad.flac ... truncated"),
        (with_nan, "wav", "bad.wav ... samples"),
        (with_a_huge_sample, "wav", "bad.wav ... samples"),
    ],
)
def test_a_long_file_damaged_near_its_end_is_reported_in_one_line_and_the_other_files_are_recognised(
    recognizer: Recognizer, way: str, spoil: object, suffix: str, message: str, tmp_path: Path
) -> None:
    bad = spoil(tmp_path / f"bad.{suffix}")  # type: ignore[operator]
    utterances = [whole_file(bad, "bad")]
    utterances += [whole_file(write(tmp_path / f"{n}.wav", recording(TEXTS[:n])), str(n)) for n in (1, 9)]
    assert utterances[0].duration > 5 * SHORT.chunk_seconds
    results = list(recognizer.recognize(utterances, inference(way)))
    [rejected] = [result for result in results if isinstance(result, Rejected)]
    assert rejected.utterance.id == "bad"
    assert "\n" not in rejected.reason
    texts = {result[0].id: result[1].text for result in results if not isinstance(result, Rejected)}
    assert texts == {"1": TEXTS[0], "9": " ".join(TEXTS[:9])}
    with refused(AudioError, message):
        recognizer.transcribe([bad], inference(way), sample_rate=SAMPLE_RATE)


def test_a_short_file_with_extreme_samples_is_reported_in_one_line_and_the_other_files_are_recognised(
    recognizer: Recognizer, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "bad.wav", (1e30 * recording(TEXTS[:1])).numpy(), SAMPLE_RATE, subtype="FLOAT")
    write(tmp_path / "good.wav", recording(TEXTS[:1]))
    write(tmp_path / "longer.wav", recording(TEXTS[:2]))
    utterances = [whole_file(tmp_path / f"{name}.wav", name) for name in ("good", "bad", "longer")]
    results = list(recognizer.recognize(utterances, inference()))
    [rejected] = [result for result in results if isinstance(result, Rejected)]
    check_refusal(rejected.reason, "bad.wav: samples")
    texts = {result[0].id: result[1].text for result in results if not isinstance(result, Rejected)}
    assert texts == {"good": TEXTS[0], "longer": " ".join(TEXTS[:2])}


@pytest.mark.parametrize("wrong", [0.5, 0.97, 1.03, 3.0])
def test_a_long_file_whose_length_differs_from_its_manifest_is_rejected(
    recognizer: Recognizer, wrong: float, tmp_path: Path
) -> None:
    path = write(tmp_path / "a.wav", recording(TEXTS))
    utterance = Utterance(str(path), wrong * whole_file(path, "a").duration, "", "a")
    [result] = recognizer.recognize([utterance], inference())
    assert isinstance(result, Rejected)
    check_refusal(result.reason, f"{path} ... duration")


# ---- n-best of several segments


class GivenTexts:
    """A decoder that returns given texts, one per segment."""

    needs = ()
    max_seconds = None
    max_hypotheses = 5
    biasing = NO_BIASING
    compile_hotwords = None
    tunable: Mapping[str, Tunable] = {}
    description = "given texts"

    def __init__(self, segments: list[list[Hypothesis]]) -> None:
        self.segments = iter(segments)

    def evidence(self, encoded: Encoded) -> None:
        return None

    def search(self, evidence: None, **values: float) -> list[list[Hypothesis]]:
        return [next(self.segments)]


def silent_segments(number: int) -> Iterator[Segment]:
    return iter([Segment(1.6 * position, torch.zeros(40, 8)) for position in range(number)])


@pytest.mark.parametrize("nbest", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("seed", range(5))
def test_the_n_best_are_the_best_combinations_of_the_segments_hypotheses(seed: int, nbest: int) -> None:
    draw = torch.Generator().manual_seed(seed)

    def hypotheses() -> list[Hypothesis]:
        tokens = [torch.randint(1, 4, (int(length),), generator=draw).tolist() for length in (0, 1, 1, 3, 4)]
        scores = (-20 * torch.rand(len(tokens), generator=draw)).sort(descending=True).values.tolist()
        shuffled = [tokens[position] for position in torch.randperm(len(tokens), generator=draw)]
        return [Hypothesis(sequence, score) for sequence, score in zip(shuffled, scores, strict=True)]

    segments = [hypotheses() for _ in range(3)]
    recognizer = listener(lambda head, tokenizer, normalize: GivenTexts(segments))
    pieces = recognizer.model.tokenizer.pieces
    best: dict[str, float] = {}
    for combined in itertools.product(*segments):
        text = " ".join(
            " ".join("".join(pieces[token] for token in hypothesis.tokens) for hypothesis in combined).split()
        )
        score = sum(hypothesis.score for hypothesis in combined)
        best[text] = max(best.get(text, -math.inf), score)
    expected = sorted(best.items(), key=lambda entry: -entry[1])[:nbest]
    transcript = recognizer.transcript(4.8, silent_segments(3), nbest)
    assert [alternative.text for alternative in transcript.alternatives] == [text for text, _ in expected]
    assert [alternative.score for alternative in transcript.alternatives] == pytest.approx(
        [score for _, score in expected]
    )
    assert transcript.alternatives[0].text == transcript.text


@WAYS
def test_without_n_best_the_only_hypothesis_is_the_text(recognizer: Recognizer, way: str) -> None:
    [transcript] = recognizer.transcribe([recording(TEXTS)], inference(way, nbest=3), sample_rate=SAMPLE_RATE)
    assert [alternative.text for alternative in transcript.alternatives] == [transcript.text]


# ---- segments between silences


def test_segments_between_silences_are_recognised_separately(recognizer: Recognizer) -> None:
    waveform = recording(TEXTS, pause=0.6)
    utterance = Utterance("", len(waveform) / SAMPLE_RATE, "", "0")
    [(_, segments)] = recognizer.segments([utterance], inference("silence"), {"0": waveform})  # type: ignore[misc]
    for (begin, encoder_out), (start, segment) in zip(
        segments, cut_at_silences([waveform], SAMPLE_RATE, max_seconds=SHORT.chunk_seconds), strict=True
    ):
        assert begin == start / SAMPLE_RATE
        features = recognizer.model.features(segment)
        alone = recognizer.model(features[None], torch.tensor([len(features)])).out
        torch.testing.assert_close(encoder_out, alone[0], atol=1e-4, rtol=0)


@WAYS
@pytest.mark.parametrize(("batch_seconds", "most"), [(1.0, 1), (7.0, 2), (100.0, 8)])
def test_the_net_never_processes_more_audio_at_once_than_a_batch_may_have(
    way: str, batch_seconds: float, most: int
) -> None:
    """Memory is bounded for recordings of any length: a chunk is at most 3 s long, and a batch has at most 8 chunks."""
    recognizer = listener()
    sizes: list[tuple[int, int]] = []
    recognizer.model.encoder.register_forward_pre_hook(lambda _, given: sizes.append(given[0].shape[:2]))  # type: ignore[attr-defined]
    options = Inference(BatchBounds(batch_seconds, 8), SHORT, SEGMENTERS[way])
    recognizer.transcribe([recording(TEXTS * 3)], options, sample_rate=SAMPLE_RATE)
    assert all(batch == 1 or batch * frames <= 100 * batch_seconds for batch, frames in sizes)
    assert all(frames <= 300 for _, frames in sizes)
    assert most <= max(batch for batch, _ in sizes) <= 8
