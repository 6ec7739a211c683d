"""When the tokens of a hypothesis are said, and how sure they are, where its decoder does not tell."""

from torch import Tensor

from asr.interfaces import Hypothesis
from asr.recognition.alignment import token_spans
from asr.recognition.confidence import frame_confidence


def with_times(hypothesis: Hypothesis, log_probs: Tensor | None) -> Hypothesis:
    """Give a hypothesis the frames and confidences of its tokens that its decoder has not.

    Frames are those of the most likely path that spells the tokens; a token is as sure as its clearest frame
    (arXiv:2212.08703, section 3.4: maximum).

    Args:
        hypothesis: of an utterance.
        log_probs: of the frame head, (T', V); None: there is none, and the decoder tells both.
    """
    frames, confidences = hypothesis.frames, hypothesis.confidences
    if not hypothesis.tokens or log_probs is None or (frames is not None and confidences is not None):
        return hypothesis
    frames = token_spans(log_probs, hypothesis.tokens) if frames is None else frames
    if confidences is None:
        sure = frame_confidence(log_probs)
        confidences = [float(sure[span.start : span.end].max()) for span in frames]
    return hypothesis._replace(frames=frames, confidences=confidences)
