"""The best path."""

from types import MappingProxyType

from asr.interfaces import NO_BIASING, Hypothesis


class Best:
    """Take the best token of each frame, merge repeats and drop blanks."""

    needs = ("frame_head",)
    max_seconds = None
    max_hypotheses = 1
    biasing = NO_BIASING
    compile_hotwords = None
    streaming = None
    tunable = MappingProxyType({})
    description = "the best path"

    def __init__(self, head, tokenizer, normalize):
        self.log_probs = head.frame_head.log_probs

    def evidence(self, encoded):
        return self.log_probs(encoded.out).argmax(dim=-1).tolist(), encoded.frame_counts

    def search(self, evidence):
        paths = [path[:length] for path, length in zip(*evidence, strict=True)]
        merged = [[b for a, b in zip([0, *path], path, strict=False) if b not in (a, 0)] for path in paths]
        return [[Hypothesis(tokens, 0.0)] for tokens in merged]
