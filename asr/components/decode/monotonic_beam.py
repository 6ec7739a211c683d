"""Beam search of a transducer that emits at most one token in each frame."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from asr.base.settings.rule import whole
from asr.components.decode.fusion.shallow_fusion import NEVER, FusionMaker, ShallowFusion
from asr.components.decode.predictions import PrefixReader, next_log_probs
from asr.components.decode.prefixes import Prefix
from asr.components.decode.token_times import with_times_of
from asr.components.decode.trails import Beams, Paths, add, score, timed_hypotheses
from asr.components.decode.turns import searched
from asr.interfaces import BLANK_ID, Biasings, Encoded, Head, Hypothesis, Span, Tokenizer


class Extension(NamedTuple):
    """A prefix to be extended in a frame.

    Args:
        limit: upper bound of the score of the extended prefix.
        prefix: the prefix before the extension.
        paths: the paths after the extension.
        token: token that extends the prefix; the blank: none.
    """

    limit: float
    prefix: Prefix
    paths: Paths
    token: int


class MonotonicBeam:
    """Extend each prefix by one token or by the blank in each frame, so that a path has an output per frame.

    *Source*: Tripathi et al. 2019, "Monotonic recurrent neural network transducer and decoding strategies"; as
    `modified_beam_search` of icefall and sherpa-onnx. The models are trained with the loss of Graves' transducer, whose
    paths end a frame with the blank: the score of a hypothesis is no log-probability of this model.

    Args:
        head: a transducer without durations.
        beam_size: number of extensions that remain after each frame; those with equal tokens become one prefix.
        tokens_per_frame: number of most likely tokens that extend a prefix, not counting the blank. Without fusion,
            `beam_size` tokens are enough to find all extensions that remain.
        num_start_tokens: the last hypotheses are ranked by their scores per token; this number is added to the number
            of their tokens, as in icefall, where it is the context of the prediction network.
        fusion: makes the shallow fusion, given tokenizer and normalize.

    Raises:
        InputError: a setting is invalid, or a file cannot be used.
    """

    streaming = None
    needs = ("frame_joiner",)
    max_seconds = None

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: Annotated[int, whole(1, 10_000)],
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        num_start_tokens: Annotated[int, whole(1, 100)],
        fusion: FusionMaker,
    ) -> None:
        self.head = searched(head, tokenizer)
        self.max_hypotheses = beam_size
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size - 1)  # the blank is not a token
        self.num_start_tokens = num_start_tokens
        self.fusion = fusion(tokenizer, normalize)
        self.biasing, self.tunable = self.fusion.biasing, self.fusion.tunable
        self.compile_hotwords = self.fusion.compile_hotwords
        self.description = self.fusion.describe(f"beam search with a token per frame, {beam_size} hypotheses")

    def evidence(self, encoded: Encoded) -> list[Tensor]:
        """Return the joiner's input from the frames of each utterance, (T', J)."""
        rows = self.head.joiner.of_frames(encoded.out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, encoded.frame_counts, strict=True)]

    @torch.inference_mode()
    def search(self, evidence: list[Tensor], biasings: Biasings = None, **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses per utterance, the best first: the one with the best score per token."""
        fusions = self.fusion.of_utterances(len(evidence), biasings, values)
        return [
            sorted(
                (with_times_of(self.head, hypothesis, len(frames)) for hypothesis in self._search(frames, fusion)),
                key=self._score_per_token,
                reverse=True,
            )
            for frames, fusion in zip(evidence, fusions, strict=True)
        ]

    def _score_per_token(self, hypothesis: Hypothesis) -> float:
        return hypothesis.score / (len(hypothesis.tokens) + self.num_start_tokens)

    def _search(self, frames: Tensor, fusion: ShallowFusion) -> list[Hypothesis]:
        """Return the hypotheses of frames (T', J)."""
        empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        reader = PrefixReader(self.head, empty)
        beams: Beams = {empty: Paths(0.0, 0.0, None)}
        for number, frame in enumerate(frames):
            log_probs, _ = next_log_probs(self.head, frame, reader(beams))  # (N, V)
            beams = self._extended(beams, log_probs, fusion, Span(number, number + 1))
            reader.forget_all_but(beams)
        return timed_hypotheses(fusion, beams)

    def _extended(self, beams: Beams, log_probs: Tensor, fusion: ShallowFusion, span: Span) -> Beams:
        """Extend prefixes by the blank and by tokens of a frame; the `beam_size` best extensions remain."""
        fusion.read(prefix.context for prefix in beams)
        gains, extensions = fusion.at_most(), list[Extension]()
        blanks = log_probs[:, BLANK_ID].tolist()
        log_probs[:, BLANK_ID] = NEVER
        values, tokens = log_probs.topk(self.tokens_per_frame, dim=1)
        for pair, blank, *row in zip(beams.items(), blanks, values.tolist(), tokens.tolist(), strict=True):
            prefix, paths = pair
            extensions.append(Extension(score(*pair) + blank, prefix, paths.passed(blank), BLANK_ID))
            for value, token in zip(*row, strict=True):
                limit = score(*pair) + value + gains[token]
                extensions.append(Extension(limit, prefix, paths.wrote(value, span, value), token))
        extensions.sort(key=lambda extension: extension.limit, reverse=True)
        best: list[tuple[float, Prefix, Paths]] = []
        for limit, before, paths, token in extensions:
            if limit == NEVER or (len(best) == self.max_hypotheses and limit <= best[-1][0]):
                break
            after = before if token == BLANK_ID else before.extend(fusion, token)
            if after is not None:
                best.append((score(after, paths), after, paths))
                best = sorted(best, key=lambda extended: extended[0], reverse=True)[: self.max_hypotheses]
        longer: Beams = {}
        for _, prefix, paths in best:
            add(longer, prefix, paths)
        return longer
