"""A reference text on its audio, and training segments out of a long recording: cut at silences, each with a score."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from asr.data.batch import Rejected
from asr.data.dataset import stream_utterance
from asr.data.manifest import Utterance
from asr.errors import InputError
from asr.recognition.alignment import frame_deficits, token_spans
from asr.recognition.inference import Inference
from asr.recognition.recognizer import Recognizer
from asr.recognition.silence import cut_at_silences
from asr.recognition.timing import word_times
from asr.recognition.transcript import Alternative, Transcript, Word
from asr.text.words import spell

MARGIN_SECONDS = 0.5  # of silence that a segment keeps at either end: CTC marks a word somewhere within it
SCORED_SECONDS = 2.0  # over which a mean is taken: about five words


class Aligned(NamedTuple):
    """An utterance's text on its audio.

    Args:
        transcript: the words with their times.
        deficits: by how much the text is less likely than what the net would write, frame by frame, (T',).
    """

    transcript: Transcript
    deficits: Tensor


class SegmentRules(NamedTuple):
    """Which segments are good to train on.

    Args:
        min_score: the least score of one.
        min_seconds: the shortest.
        max_seconds: the longest.
    """

    min_score: float
    min_seconds: float
    max_seconds: float


class Stretch(NamedTuple):
    """A stretch of an utterance between two silences that holds words.

    Args:
        number: of the stretch in its utterance, from 1; those without words count, too.
        begin: in seconds from the utterance's start; at most MARGIN_SECONDS before the first word.
        end: in seconds; at most MARGIN_SECONDS after the last word.
        first: place of the first of its words.
        last: place after the last of its words.
        is_torn: a cut goes through a word, as there was no pause.
    """

    number: int
    begin: float
    end: float
    first: int
    last: int
    is_torn: bool


class AlignedSegment(NamedTuple):
    """A stretch of a recording and the words that are said in it.

    Args:
        utterance: where it is, and its text as written.
        score: mean of the frames' deficits over the two seconds where that is lowest; see `segment_score`.
        problem: why it is not good to train on; None: it is.
    """

    utterance: Utterance
    score: float
    problem: str | None


def aligned_reference(recognizer: Recognizer, utterance: Utterance, log_probs: Tensor) -> Aligned:
    """Make an utterance's reference text a transcript: each word with the time at which it is said.

    A word's score is the log-probability of the best path that spells the text less that of the best path of all, over
    the frames from the word's start to the next word's: 0 where the net hears the same, and far below where it hears
    something else. A word's confidence is the exponential of it; the text's score is that of its worst word, which
    one wrong, missing or superfluous word is enough to lower, in a text of any length.

    Args:
        recognizer: whose normaliser, tokenizer and stride count.
        utterance: with its text as written.
        log_probs: (T', V).

    Raises:
        InputError: the text is empty, cannot be spelled, or is too long for its audio.
    """
    text = recognizer.model.normalize(utterance.text)
    tokens = recognizer.model.tokenizer.encode(text)
    words = spell(tokens, recognizer.model.tokenizer.pieces)
    if not words:
        raise InputError(f"the text must hold words, to be aligned; got {utterance.text!r}.")
    needed = recognizer.model.head.min_frames(tokens)
    if needed > len(log_probs):
        raise InputError(f"the text must fit its audio: {needed} frames are needed, {len(log_probs)} are there.")
    spans = token_spans(log_probs, tokens)
    deficits = frame_deficits(log_probs, tokens, spans)
    bounds = [0, *(spans[word.first].start for word in words[1:]), len(log_probs)]
    scores = [float(deficits[start:end].sum()) for start, end in pairwise(bounds)]
    times = word_times(words, spans, recognizer.model.frame_seconds, 0.0, utterance.duration)
    timed = [
        Word(word.text, start, end, math.exp(score))
        for word, (start, end), score in zip(words, times, scores, strict=True)
    ]
    transcript = Transcript(tuple(timed), (Alternative(text, min(scores)),), utterance.duration)
    return Aligned(transcript, deficits)


def align_utterances(
    recognizer: Recognizer, utterances: Sequence[Utterance], inference: Inference, on_progress: Callable[[float], None]
) -> Iterator[tuple[Utterance, Aligned | str]]:
    """Yield each utterance with its aligned reference text, or the reason why it cannot be read or aligned.

    Args:
        recognizer: with a frame head.
        utterances: with their texts as written.
        inference: bounds of memory.
        on_progress: called with the seconds of each utterance.
    """
    for result in recognizer.segments(utterances, inference.unchecked):
        if isinstance(result, Rejected):
            yield result.utterance, result.reason
            on_progress(result.utterance.duration)
            continue
        utterance, segments = result
        aligned: Aligned | str
        try:
            log_probs = torch.cat([recognizer.log_probs(encoder_out) for _, encoder_out in segments])
            aligned = aligned_reference(recognizer, utterance, log_probs)
        except InputError as error:
            aligned = str(error)
        yield utterance, aligned
        on_progress(utterance.duration)


def cut_segments(
    utterance: Utterance,
    aligned: Aligned,
    rules: SegmentRules,
    *,
    normalize: Callable[[str], str],
    frame_seconds: float,
    sample_rate: int,
) -> Iterator[AlignedSegment]:
    """Cut an aligned utterance at silences; what is between two cuts and holds words is a segment.

    A word belongs to where its middle is. A segment in which one was torn by a cut, where no pause was found in
    `max_seconds`, has that as its problem.

    Args:
        utterance: with its text as written.
        aligned: that text on its audio.
        rules: which segments are good.
        normalize: what the aligned words were made by.
        frame_seconds: from one frame of `aligned.deficits` to the next.
        sample_rate: at which silences are looked for, in Hz.

    Raises:
        AudioError: the audio cannot be read.
    """
    words = aligned.transcript.words
    texts = written_words(utterance.text, [word.text for word in words], normalize)
    for number, begin, end, first, last, is_torn in word_stretches(utterance, words, rules.max_seconds, sample_rate):
        text = " ".join(filter(None, texts[first:last]))
        frames = aligned.deficits[int(begin / frame_seconds) : int(end / frame_seconds) + 1]
        score = segment_score(frames, frame_seconds)
        segment = replace(
            utterance,
            id=f"{utterance.id}-{number:05d}",
            offset=round((utterance.offset or 0.0) + begin, 3),
            duration=round(end - begin, 3),
            text=text,
        )
        yield AlignedSegment(segment, score, _problem(segment.duration, score, is_torn, rules))


def word_stretches(
    utterance: Utterance, words: Sequence[Word], max_seconds: float, sample_rate: int
) -> Iterator[Stretch]:
    """Cut an utterance at silences, and yield the stretches that hold words. A word belongs to where its middle is.

    Args:
        utterance: whose audio is read, unless it is shorter than a stretch may be.
        words: in order, with their times.
        max_seconds: the longest stretch.
        sample_rate: at which silences are looked for, in Hz.

    Raises:
        AudioError: the audio cannot be read.
    """
    cuts = [0.0]
    if utterance.duration > max_seconds:
        stretches = cut_at_silences(stream_utterance(utterance, sample_rate), sample_rate, max_seconds=max_seconds)
        cuts = [start / sample_rate for start, _ in stretches]
    first = 0
    for number, (begin, end) in enumerate(pairwise([*cuts, math.inf]), start=1):
        last = first
        while last < len(words) and (words[last].start + words[last].end) / 2 < end:
            last += 1
        if first == last:
            continue
        inside = words[first:last]
        is_torn = inside[0].start < begin or inside[-1].end > end
        begin = max(begin, inside[0].start - MARGIN_SECONDS)
        end = min(end, inside[-1].end + MARGIN_SECONDS, utterance.duration)
        yield Stretch(number, begin, end, first, last, is_torn)
        first = last


def segment_score(deficits: Tensor, frame_seconds: float) -> float:
    """Return the mean of the frames' deficits over the two seconds where it is lowest, or over all there are.

    A deficit is the log-probability of the best path that spells the text less that of the best path of all. So the
    score is 0 where the net hears just this text; it does not hang on a segment's length, and a few wrong, missing or
    superfluous words are enough to lower it.

    *Source*: Kürzinger et al. 2020, arXiv:2007.09127, section 2.2. *Differs from the paper*: deficits, instead of
    log-probabilities, so that noise, in which the net is unsure of any text, does not count as a wrong one.

    Shapes:
        deficits: (T',), at least one.
    """
    width = min(len(deficits), max(1, round(SCORED_SECONDS / frame_seconds)))
    sums = torch.nn.functional.pad(deficits.double().cumsum(0), (1, 0))
    return float((sums[width:] - sums[:-width]).min()) / width


def _problem(seconds: float, score: float, torn: bool, rules: SegmentRules) -> str | None:
    if score < rules.min_score:
        return "low score"
    if torn:
        return "no pause to cut at"
    if seconds < rules.min_seconds:
        return "too short"
    return None


def written_words(text: str, words: Sequence[str], normalize: Callable[[str], str]) -> list[str]:
    """Return what was written for each normalised word; signs that are no word stand behind the word before them.

    Of a written word that became several, the first one has it and the others have nothing. Where a normaliser looks at
    several words together, so that it cannot be told which became which, the normalised words are returned.

    Args:
        text: as written.
        words: normalised.
        normalize: what made them of it.
    """
    written: list[str] = []
    normal: list[str] = []
    for word in text.split():
        made = normalize(word).split()
        if not made and written:
            place = next(place for place in reversed(range(len(written))) if written[place])
            written[place] += f" {word}"
        elif made:
            normal += made
            written += [word, *[""] * (len(made) - 1)]
    return written if normal == list(words) else list(words)
