"""Beam search of a transducer, with shallow fusion."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, cast

import torch
from torch import Tensor

from asr.decode.fusion.shallow_fusion import NEVER, Bonus, ShallowFusion
from asr.decode.prefixes import Prefix, finish
from asr.interfaces import BLANK_ID, Head, Hypothesis, Tokenizer, TransducerHead, Tunable
from asr.settings.rule import whole

Beams = dict[Prefix, float]  # log-probability of all paths that have written a prefix, without fusion
Longer = list[tuple[float, Prefix, float]]  # score, prefix, log-probability


class TransducerBeam:
    """Search for the tokens that score highest over all their paths, with language model, lexicon and hotwords.

    *Source*: Saon et al. 2020, "Alignment-length synchronous decoding for RNN transducer", section 2.2:
    time-synchronous decoding. No more tokens are written than the frames can spell by CTC, which gives them their
    times.

    Args:
        head: with a joiner and a predictor.
        tokenizer: says what tokens spell.
        normalize: as texts are normalised that the hotwords have to fit.
        beam_size: prefixes kept from frame to frame, and from token to token within one.
        beam_threshold: those that score less than the best one by more than this are not kept (natural logarithm).
        tokens_per_frame: the most likely tokens, which are tried behind a prefix, as blank always is.
        max_symbols: tokens in a frame, at most.
        fusion: makes what is added to the acoustic score, given tokenizer and normalize.

    Raises:
        InputError: a setting does not hold, or a file cannot be used.
    """

    streaming = None
    needs = ("joiner",)
    max_seconds = None

    def __init__(
        self,
        head: Head,
        tokenizer: Tokenizer,
        normalize: Callable[[str], str],
        *,
        beam_size: Annotated[int, whole(1, 10_000)],
        beam_threshold: Bonus,
        tokens_per_frame: Annotated[int, whole(1, 10_000)],
        max_symbols: Annotated[int, whole(1, 1_000)],
        fusion: Callable[[Tokenizer, Callable[[str], str]], ShallowFusion],
    ) -> None:
        self.head = cast(TransducerHead, head)
        self.beam_size = self.max_hypotheses = beam_size
        self.beam_threshold = beam_threshold
        self.tokens_per_frame = min(tokens_per_frame, tokenizer.vocab_size)
        self.max_symbols = max_symbols
        self.fusion = fusion(tokenizer, normalize)
        self.hotwords = self.fusion.hotwords

    @property
    def tunable(self) -> dict[str, Tunable]:
        """Weight and word insertion bonus of the language model, if there is one."""
        return self.fusion.tunable

    @property
    def description(self) -> str:
        """The search, and what takes part in it."""
        return ", ".join([f"beam search, {self.beam_size} hypotheses", *self.fusion.description])

    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> list[Tensor]:
        """What the joiner takes of each frame, (T', J), utterance by utterance."""
        rows = self.head.joiner.of_frames(encoder_out)  # (B, T', J)
        return [row[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]

    @torch.inference_mode()
    def search(self, evidence: list[Tensor], **values: float) -> list[list[Hypothesis]]:
        """Find at most `beam_size` hypotheses an utterance.

        Args:
            evidence: see there.
            values: of what is tunable, instead of its own.
        """
        fusion = self.fusion.weighed(**values)
        return [_Search(self, fusion)(frames) for frames in evidence]


class _Reader:
    """What the joiner takes of each prefix of the beam, and the state of the prediction network behind it."""

    def __init__(self, head: TransducerHead, empty: Prefix) -> None:
        self._head = head
        begun = head.predictor.initial_state(1)
        out, state = head.predictor.step(torch.full((1,), BLANK_ID, device=begun.device), begun)
        self._read = {empty: (head.joiner.of_tokens(out)[0], state[0])}

    def __call__(self, prefixes: Iterable[Prefix]) -> Tensor:
        """N prefixes, the new ones longer by a token than some that were read, to (N, J)."""
        prefixes = list(prefixes)
        new = [prefix for prefix in prefixes if prefix not in self._read]
        if new:
            before = torch.stack([self._read[cast(Prefix, prefix.before())][1] for prefix in new])
            tokens = torch.tensor([prefix.token for prefix in new], device=before.device)
            out, states = self._head.predictor.step(tokens, before)
            self._read.update(zip(new, zip(self._head.joiner.of_tokens(out), states, strict=True), strict=True))
        return torch.stack([self._read[prefix][0] for prefix in prefixes])

    def forget_all_but(self, prefixes: Iterable[Prefix]) -> None:
        """Keep what is needed of these and of what grows from them."""
        self._read = {prefix: self._read[prefix] for prefix in prefixes}


class _Search:
    """The search in one utterance's frames."""

    def __init__(self, settings: TransducerBeam, fusion: ShallowFusion) -> None:
        self.settings = settings
        self.fusion = fusion
        self.gains = fusion.at_most()
        self.joiner = settings.head.joiner
        self.empty = Prefix(None, BLANK_ID, fusion.start(), 0.0)
        self.reader = _Reader(settings.head, self.empty)
        self.needed = {self.empty: 0}  # frames, to spell a prefix

    def __call__(self, frames: Tensor) -> list[Hypothesis]:
        """Find the hypotheses in frames (T', J), the best first."""
        beams: Beams = {self.empty: 0.0}
        for frame in frames:
            beams = self._step(beams, frame, len(frames))
            self.reader.forget_all_but(beams)
            self.needed = {prefix: self.needed[prefix] for prefix in beams}
        return finish(self.fusion, beams)

    def _step(self, waiting: Beams, frame: Tensor, num_frames: int) -> Beams:
        """Write tokens in a frame, then the blank behind them: the beams before the frame to those behind it."""
        settings = self.settings
        done: Beams = {}
        for number in range(settings.max_symbols + 1):
            log_probs = self.joiner(frame, self.reader(waiting)).log_softmax(dim=-1)  # (N, V)
            for (prefix, path), blank in zip(waiting.items(), log_probs[:, BLANK_ID].tolist(), strict=True):
                done[prefix] = _added(done.get(prefix, NEVER), path + blank)
            if number == settings.max_symbols:
                break
            longer = self._longer(waiting, log_probs, self._floor(done), num_frames)
            waiting = {prefix: path for _, prefix, path in longer[: settings.beam_size]}
            if not waiting:
                break
        floor = self._floor(done)
        best = sorted(done.items(), key=lambda pair: pair[1] + pair[0].fused, reverse=True)[: settings.beam_size]
        return {prefix: path for prefix, path in best if path + prefix.fused >= floor}

    def _longer(self, waiting: Beams, log_probs: Tensor, floor: float, num_frames: int) -> Longer:
        """Find the prefixes that are longer by a token and may yet be kept, the best first."""
        log_probs[:, BLANK_ID] = NEVER
        values, tokens = log_probs.topk(min(self.settings.tokens_per_frame, log_probs.shape[1] - 1), dim=-1)
        longer: Longer = []
        rows = zip(waiting.items(), values.tolist(), tokens.tolist(), strict=True)
        self.fusion.read(prefix.context for prefix in waiting)
        for (prefix, path), row_values, row_tokens in rows:
            for value, token in zip(row_values, row_tokens, strict=True):
                if path + value + prefix.fused + self.gains[token] < floor:
                    continue
                needed = self.needed[prefix] + 1 + (token == prefix.token)
                child = prefix.extend(self.fusion, token) if needed <= num_frames else None
                if child is not None and path + value + child.fused >= floor:
                    self.needed[child] = needed
                    longer.append((path + value + child.fused, child, path + value))
        longer.sort(key=lambda each: each[0], reverse=True)
        return longer

    def _floor(self, done: Mapping[Prefix, float]) -> float:
        """What a prefix must score to be kept beside those that are done with a frame."""
        scores = sorted((path + prefix.fused for prefix, path in done.items()), reverse=True)
        enough = len(scores) >= self.settings.beam_size
        return max(scores[0] - self.settings.beam_threshold, scores[self.settings.beam_size - 1] if enough else NEVER)


def _added(left: float, right: float) -> float:
    """The logarithm of the sum of two probabilities."""
    high, low = (left, right) if left > right else (right, left)
    return high + math.log1p(math.exp(low - high))
