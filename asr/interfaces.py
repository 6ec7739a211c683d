"""The Protocol of each part of the pipeline, with the shapes of what it takes and returns.

A component is whatever has these methods; it inherits from nothing of ours. Dimensions: S samples, T feature
frames, F mel bins, B utterances, U tokens, T' encoder frames, D encoder dimension, V vocabulary with blank.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from asr.lengths import Lengths

BLANK_ID = 0  # CTC's blank, in every tokenizer, head and decoder
BOUNDARY_ID = BLANK_ID  # begins and ends a sequence whose tokens are predicted one by one; it spells nothing, either


class Tokenizer(Protocol):
    """Text to token ids and back. Ids are 1 .. vocab_size - 1; 0 is the blank."""

    vocab_size: int
    pieces: Sequence[str]  # what each id spells, "" for the blank; a space parts words

    def fit(self, texts: Iterable[str]) -> None: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Iterable[int]) -> str: ...
    def files(self) -> dict[str, bytes]: ...
    def load(self, files: dict[str, bytes]) -> None: ...


class Normalization(Protocol):
    """(T, F) to (T, F): the last step of the features."""

    framewise: ClassVar[bool]  # whether a frame comes out the same without the others, as streams need it

    @property
    def batched(self) -> nn.Module: ...  # features (B, T, F), padding_mask (B, T) to (B, T, F)
    def __call__(self, features: Tensor) -> Tensor: ...
    def fit(self, features: Iterable[Tensor]) -> None: ...
    def files(self) -> dict[str, bytes]: ...
    def load(self, files: dict[str, bytes]) -> None: ...


class Features(Protocol):
    """One waveform (S,) to one utterance's features (T, F)."""

    dim: int  # F
    sample_rate: int
    window: int  # samples of a frame
    hop: int  # samples from one frame to the next
    samples_ahead: int  # of the first sample of a frame's hop, that the frame needs; at the waveform's end it is padded
    frames_before: int  # whose hops a frame needs, too
    normalize: Normalization

    def __call__(self, waveform: Tensor) -> Tensor: ...
    def energies(self, waveform: Tensor) -> Tensor: ...
    def num_frames(self, num_samples: Lengths) -> Lengths: ...


class Recordings(Protocol):
    """Audio that an augmentation mixes in: a folder or a manifest, decoded as it is drawn."""

    def __len__(self) -> int: ...
    def whole(self, place: int, sample_rate: int) -> Tensor: ...
    def stretch(self, place: int, sample_rate: int, num_samples: int, begin: float) -> Tensor:
        """(S,), from a share of what is left of a longer one; a shorter one goes round."""


class WaveformAugment(Protocol):
    """A random change of one utterance's waveform, (S,) to (S',), drawn from torch's CPU generator.

    Made with the sample rate. A setting `recordings` is the path of a folder or a manifest; the class is given
    Recordings. (A change of speed has the stage "plan": `asr.data.dataset.SpeedPerturbation`.)
    """

    stage: ClassVar[str]  # "waveform"

    @property
    def max_added_seconds(self) -> float:
        """By how much the waveform may grow; the batch plan leaves room for it."""

    def __call__(self, waveform: Tensor) -> Tensor: ...


class FeatureAugment(Protocol):
    """A random change of one utterance's features, (T, F) to (T, F), drawn from torch's CPU generator."""

    stage: ClassVar[str]  # "features"

    @property
    def masks(self) -> "Masks | None":
        """Itself, if all it does is to set rectangles to 0: then it also works on features computed on the GPU."""

    def __call__(self, features: Tensor) -> Tensor: ...


class Masks(Protocol):
    """Rectangles of features that are set to 0."""

    def draw(self, num_frames: int, dim: int) -> Tensor:
        """Draw rectangles (M, 4) from torch's CPU generator: first frame and end, first bin and end."""


class Subsampling(Protocol):
    """(B, T, F), (B,) to (B, T', D), (B,)."""

    stride: int  # feature frames per encoder frame

    def __call__(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]: ...
    def output_lengths(self, feature_lengths: Lengths) -> Lengths: ...


class MaskedNorm(Protocol):
    """(B, T', D), padding_mask (B, T') to (B, T', D)."""

    framewise: ClassVar[bool]  # whether, but for training, a frame comes out the same without the others

    def __call__(self, x: Tensor, padding_mask: Tensor) -> Tensor: ...


class Attention(Protocol):
    """Self-attention of a Conformer block; made with D, the number of heads and dropout."""

    @property
    def streaming(self) -> "StreamingAttention | None":
        """Itself, if it can attend to frames of earlier chunks."""

    def positions(self, x: Tensor) -> Tensor:
        """Encode the positions of x, (B, T', D), once for all blocks."""

    def __call__(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame of x, (B, T', D), to valid frames: to (B, T', D), finite at padded frames.

        `positions` is what the method of this name returns for x; `padding_mask` is (B, T').
        """


class StreamingAttention(Attention, Protocol):
    """Self-attention that also attends to the M frames before its input."""

    def extend(
        self, x: Tensor, before: Callable[[Tensor], Tensor] | None, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend from x, (B, Q, D), to M + Q frames: to (B, Q, D), and keys and values of all, (B, M + Q, 2D).

        `before` maps the keys and values of x, (B, Q, 2D), to those of the frames before, (B, M, 2D). `hidden` is True
        where a key must not be seen, (B, Q or 1, M + Q).
        """


NormMaker = Callable[[int], nn.Module]  # given the number of channels: a MaskedNorm
ActivationMaker = Callable[[], nn.Module]


class Convolution(Protocol):
    """Convolution module of a Conformer block; made with D, a norm and an activation."""

    norm: MaskedNorm

    @property
    def streaming(self) -> "StreamingConvolution | None":
        """Itself, if it can convolve with frames of earlier chunks."""

    def __call__(self, x: Tensor, padding_mask: Tensor) -> Tensor: ...


class StreamingConvolution(Convolution, Protocol):
    """A convolution module that also sees the frames before its input."""

    num_kept: int  # frames before the input that the kernel reaches

    def extend(self, x: Tensor, before: Callable[[Tensor], Tensor], padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve x, (B, Q, D), to (B, Q, D), and the convolution's input of all frames, (B, num_kept + Q, D).

        `before` maps the convolution's input at x, (B, Q, D), to that of the frames before, (B, num_kept, D).
        """


class Residual(Protocol):
    """Joins x (B, T', D) and a branch of it by way of a norm: before the branch, or behind both."""

    def enter(self, x: Tensor, norm: nn.Module) -> Tensor: ...
    def leave(self, x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor: ...
    def last(self, dim: int) -> nn.Module: ...


Tap = Callable[
    [Tensor, Tensor], Tensor
]  # what a block gave (B, T', D), padding_mask (B, T'), to what the next one gets


class Encoded(NamedTuple):
    """What an encoder gives.

    Args:
        out: encoder_out, (B, T', D).
        lengths: encoder_out_lengths, (B,).
        blocks: what each tapped block gave, (B, T', D), before its tap changed it.
    """

    out: Tensor
    lengths: Tensor
    blocks: Mapping[int, Tensor]


Taps = Mapping[int, Tap]  # by number of the block, from 0
NO_TAPS: Taps = MappingProxyType({})


class Encoder(Protocol):
    """Features (B, T, F), feature_lengths (B,) to what the encoder gives; `taps` by number of the block, from 0."""

    output_dim: int  # D
    stride: int  # feature frames per encoder frame
    blocks: nn.ModuleList  # all of one class; empty where nothing can be tapped

    @property
    def streaming(self) -> "StreamingEncoder | None":
        """Itself, if it can process an utterance chunk by chunk."""

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded: ...
    def output_lengths(self, feature_lengths: Lengths) -> Lengths: ...


State = dict[str, Tensor]  # of streams, by name, batch first: streams join and leave a batch by indexing


class StreamingEncoder(Encoder, Protocol):
    """An encoder that gives of chunks, one after another, what it gives of the whole.

    Each but the last of a stream has `chunk_frames` times `stride` feature frames, or another number of times that.
    A step is given more behind that, which begin the next chunk: `ahead`, or `right_frames` times `stride`.
    """

    chunk_frames: int | None  # encoder frames of a chunk; None: it sees all of an utterance at once
    left_frames: int  # encoder frames before a chunk that are seen from it
    right_frames: int  # the same behind a chunk, which waits for them

    def initial_state(self, batch: int, left_frames: int | None = None) -> State: ...
    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Taps = NO_TAPS, ahead: int | None = None
    ) -> tuple[Encoded, State]: ...


class Head(Protocol):
    """What is trained on encoder_out; made with output_dim D, the encoder's number of blocks, vocab_size V.

    It keeps no state between calls. `losses` are by name, each (B,), a sum for each utterance and no mean:
    "loss" is trained, the others, which `loss_names` lists, are logged.
    """

    loss_names: tuple[str, ...]  # beside "loss"
    views: int  # copies of an utterance in a training batch, with other masks each; the first of all B come first

    @property
    def taps(self) -> Taps: ...
    @property
    def frame_head(self) -> "FrameHead | None": ...
    def losses(self, encoded: Encoded, tokens: Tensor, token_lengths: Tensor) -> Mapping[str, Tensor]: ...
    def min_frames(self, tokens: list[int]) -> int: ...
    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Numbers in its largest tensor for one utterance of so many encoder frames and tokens."""


class FrameHead(Head, Protocol):
    """A head that says of each frame which token it spells: alignment, posteriors and confidence ask for it."""

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """(B, T', D) to (B, T', V)."""


class Predictor(Protocol):
    """A transducer's prediction network, made with vocab_size V: the tokens so far, (B, U), to (B, U + 1, P).

    Its state is a tensor, batch first, so that hypotheses come and go by indexing. It begins by a step of BLANK_ID.
    """

    output_dim: int  # P

    def __call__(self, tokens: Tensor) -> Tensor: ...
    def initial_state(self, batch: int) -> Tensor: ...
    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """A token of each, (B,), and the state before it to (B, P) and the state behind it."""


class JointNetwork(Protocol):
    """Joins a frame and the tokens before it: what each gives, (..., J), to logits (..., V).

    Where durations are predicted too, their logits follow those of the tokens: (..., V + number of durations).
    """

    def __call__(self, frames: Tensor, tokens: Tensor) -> Tensor: ...
    def of_frames(self, encoder_out: Tensor) -> Tensor: ...
    def of_tokens(self, predictor_out: Tensor) -> Tensor: ...


class TransducerHead(Head, Protocol):
    """A head with a prediction network."""

    predictor: Predictor
    joiner: JointNetwork


class DurationHead(Head, Protocol):
    """A transducer whose joiner predicts a duration with each token and each blank.

    The joiner has another name than `TransducerHead`'s, so that no search takes logits of durations for tokens'.
    """

    predictor: Predictor
    duration_joiner: JointNetwork
    durations: tuple[int, ...]  # in encoder frames; a blank of duration 0 is impossible


class Span(NamedTuple):
    """The frames `start` to `end`, the latter not among them, that spell a token."""

    start: int
    end: int


class Memory(NamedTuple):
    """What a token decoder looks at of encoder frames.

    Args:
        keys_values: of each of its blocks, (B, 2, H, T', D / H).
        padding: mask (B, T').
    """

    keys_values: list[Tensor]
    padding: Tensor


Cache = list[Tensor]  # of N sequences' tokens, by block of a token decoder: keys and values, (N, 2, H, U, D / H)


class Forced(NamedTuple):
    """Tokens as they are predicted, each from the right ones before it.

    Args:
        log_probs: (N, U + 1, V).
        targets: the tokens and the end behind them, (N, U + 1).
        padding: mask of those, (N, U + 1).
    """

    log_probs: Tensor
    targets: Tensor
    padding: Tensor


class TokenDecoder(Protocol):
    """What a head may have as `token_decoder`: it says of each token, by those before and all frames, the next.

    N sequences, as many of each of B utterances; N may be any multiple of B.
    """

    def remember(self, encoder_out: Tensor, lengths: Tensor) -> Memory: ...
    def start(self, number: int) -> Cache: ...
    def __call__(self, tokens: Tensor, memory: Memory, cache: Cache) -> tuple[Tensor, Cache]: ...
    def force(self, tokens: Tensor, token_lengths: Tensor, memory: Memory) -> Forced: ...


class AttentionHead(Head, Protocol):
    """A head with a token decoder, and a frame head beside it."""

    token_decoder: TokenDecoder

    @property
    def frame_head(self) -> FrameHead: ...


class TokenModel(Protocol):
    """A neural language model over a tokenizer's tokens; made with vocab_size V.

    A text begins with a step of BOUNDARY_ID, and BOUNDARY_ID is predicted at its end: it never stands within one.
    Where a text is cut into calls changes nothing. Tokens that follow a text as padding change nothing of its
    log_probs; the state after them is of no use.
    """

    vocab_size: int  # V

    def initial_state(self, batch: int) -> State:
        """Before BOUNDARY_ID; tensors, batch first, so that hypotheses come and go by indexing."""

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Tokens (B, U) to log_probs (B, U, V) of the one after each, and the state after all."""

    def join(self, states: Sequence[State]) -> State:
        """Put states into one batch, in this order, after however many tokens each is."""


class Hypothesis(NamedTuple):
    """Recognised tokens of an utterance.

    Args:
        tokens: without blanks.
        score: as the decoder ranks hypotheses (natural logarithm).
        frames: that spell each token; None: as the frame head aligns them. Of a stream, they are counted from its
            beginning.
        confidences: of each token, from 0 to 1; None: as the frame head's entropy tells.
        num_final: of a stream: tokens that change no more.
        has_ends: whether frames last as long as their tokens sound; False: they tell where a token is written.
    """

    tokens: list[int]
    score: float
    frames: list[Span] | None = None
    confidences: list[float] | None = None
    num_final: int = 0
    has_ends: bool = False


class Tunable(NamedTuple):
    """A number of a decoder that a dev set may choose.

    Args:
        value: that it has.
        trials: values to try, in order; a search begins with the middle one.
    """

    value: float
    trials: tuple[float, ...]


class Hotwords(NamedTuple):
    """Phrases that a decoder was given: those that it listens for, and those that it cannot recognise, with why."""

    phrases: Sequence[str]
    impossible: Mapping[str, str]


NO_HOTWORDS = Hotwords((), {})


class Decoder(Protocol):
    """Search for what encoder_out says; made with head, tokenizer and normaliser.

    `evidence` is what a search needs of a batch and is computed once; `search` may be tried on it with other values
    of what is tunable. It finds at least one hypothesis of each utterance, the best first. If the head's
    frame_head is None, the search must fill in frames and confidences of the hypotheses.
    """

    needs: tuple[str, ...]  # properties of the head that must not be None
    max_seconds: float | None  # of audio that is searched at once; None: any length
    max_hypotheses: int  # that are found of an utterance
    hotwords: Hotwords

    @property
    def tunable(self) -> Mapping[str, Tunable]: ...
    @property
    def streaming(self) -> "StreamingDecoder | None":
        """Itself, if it can go on from chunk to chunk."""

    @property
    def description(self) -> str: ...
    def evidence(self, encoder_out: Tensor, lengths: Tensor) -> Any: ...
    def search(self, evidence: Any, **values: float) -> list[list[Hypothesis]]: ...


class StreamingDecoder(Decoder, Protocol):
    """A decoder that goes on from chunk to chunk. A state is one stream's, and is used once."""

    def initial_state(self) -> Any: ...
    def step(
        self, encoder_out: Tensor, lengths: Tensor, states: Sequence[Any]
    ) -> tuple[list[list[Hypothesis]], list[Any]]:
        """Go on by a chunk of each stream, (B, T', D), (B,): its hypotheses so far, the best first, and its state."""

    def forget(self, state: Any, num_tokens: int) -> Any:
        """Leave out the first tokens of all hypotheses, which are final: what a stream keeps does not grow."""

    def decide(self, state: Any, tokens: list[int]) -> Any:
        """Keep only the hypotheses that begin with the first tokens of the best one, which do not change then."""

    def settle(self, state: Any) -> tuple[Hypothesis, Any]:
        """Take the best hypothesis for good, and go on behind it, with no tokens so far."""


class Moment(NamedTuple):
    """Where a run is, before an optimizer step.

    Args:
        step: of the optimizer, from 0.
        total_steps: of the whole run.
        epoch: passes over the training data that are done, the part of the present one included.
    """

    step: int
    total_steps: int
    epoch: float


class Schedule(Protocol):
    """A moment of the run to the factor that the optimizer's learning rate is multiplied by."""

    def __call__(self, moment: Moment) -> float: ...


class OptimizerMaker(Protocol):
    """The parameters that are trained, by name, to their optimizer; groups of them may have settings of their own."""

    def __call__(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer: ...


class Adapter(Protocol):
    """Small trained weights beside the frozen ones of a trained model, its base."""

    def insert(self, model: nn.Module) -> None:
        """Adapt a model in place and freeze its other weights; outputs and names of tensors stay."""

    def merged(self, base: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Merge weights that were trained, `own`, into those of the base."""
