"""SpeechBrain: greedy transducer search, frame by frame over a batch including padding, with an asr model's weights."""

from collections.abc import Callable

from speechbrain.decoders.transducer import TransducerBeamSearcher
from speechbrain.nnet.transducer.transducer_joint import Transducer_joint
from torch import Tensor, nn

from asr.components.head.transducer import Transducer
from asr.interfaces import BLANK_ID


def make(head: Transducer, max_symbols: int) -> Callable[[Tensor, Tensor], list[list[int]]]:
    """Return a search that maps encoder_out (B, T', D) and lengths (B,) to tokens."""
    predictor, joiner = head.predictor, head.joiner
    search = TransducerBeamSearcher(
        decode_network_lst=[predictor.embedding, predictor.cells, joiner.of_tokens],
        tjoint=Transducer_joint(joint="sum", nonlinearity=nn.Tanh),
        classifier_network=[joiner.output],
        blank_id=BLANK_ID,
        beam_size=1,
    )

    def decode(encoder_out: Tensor, lengths: Tensor) -> list[list[int]]:
        frames = joiner.of_frames(encoder_out)
        tokens, *_ = search.transducer_greedy_decode(frames, max_symbols_per_step=max_symbols)
        return [[int(token) for token in row] for row in tokens]

    return decode
