"""Label priors of a CTC model, estimated from recordings without transcripts."""

from collections.abc import Iterable

import torch

from asr.errors import InputError
from asr.evaluation.tuning import EncodedUtterance
from asr.recognition.recognizer import Recognizer


def label_log_priors(recognizer: Recognizer, recordings: Iterable[EncodedUtterance]) -> list[float]:
    """Average the posteriors over all frames of recordings; return log p of each token, beginning with the blank.

    One frame with uniform posteriors is added, so that no prior is zero.

    Raises:
        InputError: the recordings contain no frames.
    """
    vocab_size = recognizer.model.tokenizer.vocab_size
    total, num_frames = torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64), 1
    for recording in recordings:
        for segment in recording.segments:
            posteriors = recognizer.log_probs(segment.encoder_out).cpu().double().exp()  # (T', V)
            total += posteriors.sum(dim=0)
            num_frames += len(posteriors)
    if num_frames == 1:
        raise InputError("--label-priors must name recordings with audio that can be read; got none.")
    log_priors: list[float] = (total / num_frames).log().clamp(max=0.0).tolist()
    return log_priors
