"""Times and confidences of a transducer's tokens: its own, or those of a CTC head beside it."""

from asr.interfaces import Hypothesis, TransducerHead


def with_times_of(head: TransducerHead, hypothesis: Hypothesis, num_frames: int | None = None) -> Hypothesis:
    """Return a hypothesis of the search with the best times that the head can compute.

    With durations, a token lasts from the frame that emits it for its duration. Without durations, only the frame that
    emits it is known. A CTC head computes better times and confidences, unless the utterance has too few frames for CTC
    to spell the tokens; the hypothesis then has neither, as `asr.interfaces.Hypothesis` describes.

    Args:
        head: the head.
        hypothesis: result of the search.
        num_frames: number of frames of the utterance; None, for a stream: assume that there are enough.
    """
    if head.durations:
        return hypothesis._replace(has_ends=True)
    frame_head = head.frame_head
    if frame_head is None or (num_frames is not None and frame_head.min_frames(hypothesis.tokens) > num_frames):
        return hypothesis
    return hypothesis._replace(frames=None, confidences=None)
