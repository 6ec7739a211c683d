"""Align reference texts with audio, and cut long recordings at silences into scored training segments."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from asr.base.audio.silence import cut_at_silences
from asr.base.text.words import spell
from asr.core.data.batch import Rejected
from asr.core.data.dataset import stream_utterance
from asr.core.data.manifest import Utterance
from asr.core.recognition.alignment import frame_deficits, token_spans
from asr.core.recognition.inference import Inference
from asr.core.recognition.recognizer import Recognizer
from asr.core.recognition.timing import word_times
from asr.core.recognition.transcript import Alternative, Transcript, Word
from asr.errors import InputError

MARGIN_SECONDS = 0.5  # maximum audio before the first word and after the last word; word times are approximate
SCORED_SECONDS = 2.0  # length of the window over which deficits are averaged: about five words


class Aligned(NamedTuple):
    """An utterance's text, aligned with its audio.

    Args:
        transcript: the words with their times.
        deficits: for each frame, the log-probability of the text's best path minus that of the best path of any text,
            (T',).
    """

    transcript: Transcript
    deficits: Tensor


class SegmentRules(NamedTuple):
    """Limits for training segments.

    Args:
        min_score: minimum score of a segment.
        min_seconds: minimum duration.
        max_seconds: maximum duration.
    """

    min_score: float
    min_seconds: float
    max_seconds: float


class WordSegment(NamedTuple):
    """A segment of an utterance between two silences, with at least one word.

    Args:
        number: number of the segment in its utterance, from 1; segments without words are counted, too.
        begin: time in seconds from the utterance's start; at most MARGIN_SECONDS before the first word.
        end: time in seconds from the utterance's start; at most MARGIN_SECONDS after the last word.
        first: index of the segment's first word.
        last: index after the segment's last word.
        is_torn: whether a cut at either end goes through a word, because there was no pause.
    """

    number: int
    begin: float
    end: float
    first: int
    last: int
    is_torn: bool


class AlignedSegment(NamedTuple):
    """A segment of a recording with its words.

    Args:
        utterance: the segment's position in the recording, and the segment's text as written.
        score: mean deficit over the worst two seconds, from `segment_score`.
        problem: reason not to train on the segment; None: the segment is usable.
    """

    utterance: Utterance
    score: float
    problem: str | None


def aligned_reference(recognizer: Recognizer, utterance: Utterance, log_probs: Tensor) -> Aligned:
    """Align an utterance's reference text with its audio; return the time and the score of each word.

    A word's score is the sum of the frames' deficits (see `Aligned`) from the word's start to the next word's start. It
    is 0 where the network recognises the reference, and far below 0 elsewhere. The word's confidence is the exponential
    of its score. The text's score is the lowest score of its words. A single wrong, missing or superfluous word
    therefore lowers the text's score, however long the text is.

    Args:
        recognizer: provides normaliser, tokenizer and frame duration.
        utterance: utterance with its text as written.
        log_probs: log_probs of the utterance, (T', V).
    """
    text = recognizer.model.normalize(utterance.text)
    tokens = recognizer.model.tokenizer.encode(text)
    words = spell(tokens, recognizer.model.tokenizer.pieces)
    if not words:
        raise InputError(f"the text must have words to be aligned; got {utterance.text!r}.")
    needed = recognizer.model.head.min_frames(tokens)
    if needed > len(log_probs):
        raise InputError(f"the text must fit the audio: it needs {needed} encoder frames; got {len(log_probs)}.")
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
    """Yield each utterance with its aligned reference text, or with the reason why it cannot be read or aligned.

    Args:
        recognizer: recogniser with a frame head.
        utterances: utterances with their texts as written.
        inference: memory bounds.
        on_progress: called with the duration of each utterance in seconds.
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
    """Cut an aligned utterance at silences; yield the segments that have words.

    A word belongs to the segment that contains its midpoint. If there is no pause within `max_seconds`, a cut may go
    through a word; the segment's `problem` is then "no pause to cut at".

    Args:
        utterance: utterance with its text as written.
        aligned: the text, aligned with the audio.
        rules: limits for segments without a problem.
        normalize: normaliser that produced the aligned words.
        frame_seconds: seconds from one frame of `aligned.deficits` to the next.
        sample_rate: sample rate at which the audio is read to find silences, in Hz.

    Raises:
        AudioError: the audio cannot be read.
    """
    words = aligned.transcript.words
    texts = written_words(utterance.text, [word.text for word in words], normalize)
    for number, begin, end, first, last, is_torn in word_segments(utterance, words, rules.max_seconds, sample_rate):
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


def word_segments(
    utterance: Utterance, words: Sequence[Word], max_seconds: float, sample_rate: int
) -> Iterator[WordSegment]:
    """Cut an utterance at silences; yield the segments that have words, as `cut_segments` describes.

    A word belongs to the segment that contains its midpoint. The audio is read, at `sample_rate`, only if the utterance
    is longer than `max_seconds`.

    Raises:
        AudioError: the audio cannot be read.
    """
    cuts = [0.0]
    if utterance.duration > max_seconds:
        segments = cut_at_silences(stream_utterance(utterance, sample_rate), sample_rate, max_seconds=max_seconds)
        cuts = [start / sample_rate for start, _ in segments]
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
        yield WordSegment(number, begin, end, first, last, is_torn)
        first = last


def segment_score(deficits: Tensor, frame_seconds: float) -> float:
    """Return the mean deficit over the worst two seconds of a segment, or over all frames if the segment is shorter.

    A frame's deficit, at most 0, is the log-probability of the text's best path minus that of the best path of any
    text. The score is therefore 0 if the network recognises exactly this text. It does not depend on the segment's
    length, and a few wrong, missing or superfluous words lower it.

    *Source*: Kürzinger et al. 2020, arXiv:2007.09127, section 2.2. *Differs from the paper*: deficits replace
    log-probabilities. In noise, every text has a low log-probability; the deficits do not count this as a wrong text.

    Shapes:
        deficits: (T',); T' is at least 1.
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
    """Return the written form of each normalised word; punctuation between words is appended to the word before it.

    If a written word was normalised to several words, the first gets the written form and the others get "". If the
    normaliser replaces several words together, written and normalised words cannot be matched, and the normalised words
    are returned.

    Args:
        text: text as written.
        words: normalised words of the text.
        normalize: normaliser that produced `words` from `text`.
    """
    written: list[str] = []
    normal: list[str] = []
    for word in text.split():
        normalized = normalize(word).split()
        if not normalized and written:
            index = next(index for index in reversed(range(len(written))) if written[index])
            written[index] += f" {word}"
        elif normalized:
            normal += normalized
            written += [word, *[""] * (len(normalized) - 1)]
    return written if normal == list(words) else list(words)
