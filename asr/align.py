"""python -m asr.align MODEL MANIFEST: find when each word of the reference texts is said, and which texts are wrong."""

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from asr.cli.command import (
    audio_progress,
    complain,
    inference,
    load_model,
    model_parser,
    printable,
    run_command,
)
from asr.cli.output import Outcomes, Recording, add_output, arrange, in_order, plain_name, write
from asr.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from asr.data.manifest import Utterance
    from asr.recognition.inference import Inference
    from asr.recognition.recognizer import Recognizer
    from asr.recognition.transcript import Transcript


def main(arguments: Sequence[str] | None = None) -> int:
    """Align; the status is 1 if an utterance could not be, and the others are aligned all the same."""
    parser = model_parser(
        "align",
        "Find when each word of the reference texts is said, and which texts are wrong. Each text gets a score: 0 "
        "where the model hears the same, and the lower, the less its worst word fits what is heard.",
    )
    parser.add_argument("manifest", metavar="MANIFEST", help="JSONL, one utterance a line")
    parser.add_argument(
        "--worst", type=int, default=10, metavar="N", help="texts of lowest score, named on stderr (10)"
    )
    add_output(parser, default="jsonl")
    options = parser.parse_args(arguments)
    if options.worst < 0:
        raise InputError(f"--worst must not be negative; got {options.worst}.")
    from asr.data.manifest import read_good_lines

    how = inference(options)
    utterances, errors = read_good_lines(options.manifest)
    for error in errors:
        complain(str(error))
    recordings = arrange([Recording(line.id, line, Path(plain_name(line.id))) for line in utterances], options)
    recognizer = load_model(options)
    scores: list[tuple[float, str, str]] = []
    with audio_progress("aligning", utterances) as advance:
        for recording, aligned in write(in_order(recordings, partial(_outcomes, recognizer, how, advance)), options):
            scores.append((aligned.alternatives[0].score, recording.name, aligned.text))
    for score, name, text in sorted(scores)[: options.worst]:
        print(printable(f"{score:8.2f}  {name}  {text}"), file=sys.stderr)
    problems = len(errors) + len(recordings) - len(scores)
    if problems:
        complain(f"{problems} of {problems + len(scores)} could not be aligned: see above.")
    return 1 if problems else 0


def _outcomes(
    recognizer: "Recognizer", how: "Inference", advance: Callable[[float], None], utterances: "list[Utterance]"
) -> Outcomes:
    """Yield each utterance's aligned reference text, or why it cannot be aligned."""
    import torch

    from asr.data.batch import Rejected

    for result in recognizer.segments(utterances, how):
        if isinstance(result, Rejected):
            yield result.utterance, result.reason
            advance(result.utterance.duration)
            continue
        utterance, segments = result
        try:
            log_probs = torch.cat([recognizer.log_probs(encoder_out) for _, encoder_out in segments])
            yield utterance, aligned_reference(recognizer, utterance, log_probs)
        except InputError as error:
            yield utterance, str(error)
        advance(utterance.duration)


def aligned_reference(recognizer: "Recognizer", utterance: "Utterance", log_probs: "Tensor") -> "Transcript":
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
    from asr.recognition.alignment import frame_deficits, token_spans
    from asr.recognition.transcript import Alternative, Transcript, Word
    from asr.text.words import spell

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
    frame_seconds = recognizer.model.frame_seconds
    timed = [
        Word(
            word.text,
            spans[word.first].start * frame_seconds,
            min(spans[word.last].end * frame_seconds, utterance.duration),
            math.exp(score),
        )
        for word, score in zip(words, scores, strict=True)
    ]
    return Transcript(tuple(timed), (Alternative(text, min(scores)),), utterance.duration)


if __name__ == "__main__":
    run_command(main)
