"""The Protocol of each part of the pipeline, with the shapes of arguments and results.

A component is any class with these methods; it needs no base class. Dimensions: S samples, T feature frames, F mel
bins, B utterances, U tokens, T' encoder frames, D encoder dimension, V vocabulary size with the blank.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from asr.lengths import Lengths

BLANK_ID = 0  # CTC's blank, in every tokenizer, head and decoder
UNKNOWN_ID = 0  # of a label that an utterance lacks, or whose value the model does not know
BOUNDARY_ID = BLANK_ID  # begins and ends the sequences of autoregressive models; like the blank, it spells nothing


class Tokenizer(Protocol):
    """Convert text to token ids and back. Ids are 1 .. vocab_size - 1; 0 is the blank."""

    vocab_size: int
    pieces: Sequence[str]  # text of each id, "" for the blank and hidden pieces; a space separates words
    names: Sequence[str]  # unique name of each id: its text, if it has one; "" for the blank
    piece_scores: Mapping[str, float]  # SentencePiece's score of each of its pieces, by piece; {}: there are none

    def fit(self, texts: Iterable[str]) -> None: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Iterable[int]) -> str: ...
    def files(self) -> dict[str, bytes]: ...
    def load(self, files: dict[str, bytes]) -> None: ...
    @property
    def takes_words(self) -> bool:
        """Whether `extend` takes pieces of several characters."""
        ...

    def extend(self, pieces: Sequence[str]) -> None:
        """Append pieces to a fitted tokenizer, with the next ids; each has a character that it cannot spell yet.

        Texts without these characters must be encoded as before.
        """


class MultilingualTokenizer(Tokenizer, Protocol):
    """A tokenizer that encodes the texts of each language by itself; other tokenizers have no `encoders`."""

    encoders: Mapping[str, Callable[[str], list[int]]]  # by language


class Normalization(Protocol):
    """Normalisation of features, (T, F) to (T, F): the last step of their computation."""

    framewise: ClassVar[bool]  # whether each frame is normalised independently of the others, as streaming requires

    @property
    def batched(self) -> nn.Module: ...  # maps features (B, T, F) and padding_mask (B, T) to (B, T, F)
    def __call__(self, features: Tensor) -> Tensor: ...
    def fit(self, features: Iterable[Tensor]) -> None: ...
    def files(self) -> dict[str, bytes]: ...
    def load(self, files: dict[str, bytes]) -> None: ...


class Features(Protocol):
    """Compute the features (T, F) of one utterance from its waveform (S,)."""

    dim: int  # F
    sample_rate: int  # Hz
    window: int  # samples of a frame
    hop: int  # samples from one frame to the next
    samples_ahead: int  # number of samples that a frame depends on, from the start of the frame's hop
    frames_before: int  # number of earlier frames whose hops a frame depends on
    normalize: Normalization

    @property
    def batched(self) -> nn.Module | None:
        """Maps waveforms (B, S), 0 in the padding, and sample_counts (B,) to energies (B, T, F), or None.

        `asr.export`, and training with features on the device, need it.
        """

    def __call__(self, waveform: Tensor) -> Tensor: ...
    def energies(self, waveform: Tensor) -> Tensor: ...
    def num_frames(self, num_samples: Lengths) -> Lengths: ...


class Recordings(Protocol):
    """Recordings of a folder or manifest that an augmentation mixes in; a recording is decoded when it is drawn."""

    def __len__(self) -> int: ...
    def whole(self, index: int, sample_rate: int) -> Tensor: ...
    def segment(self, index: int, sample_rate: int, num_samples: int, begin: float) -> Tensor:
        """Cut `num_samples` out of a recording, (S,); a shorter recording is repeated.

        `begin`, in [0, 1), is the start as a fraction of the latest possible start or, if the recording is shorter than
        `num_samples`, of the recording's length.
        """


class WaveformAugment(Protocol):
    """A random change of one utterance's waveform, (S,) to (S',), drawn from torch's CPU generator.

    The constructor takes the sample rate. A setting `recordings` is the path of a folder or a manifest; the class
    receives it as `Recordings`. (A change of speed has the stage "plan": `asr.core.data.dataset.SpeedPerturbation`.)
    """

    stage: ClassVar[str]  # "waveform"

    @property
    def max_added_seconds(self) -> float:
        """Maximum number of seconds added to the waveform; the batch plan reserves them."""

    def __call__(self, waveform: Tensor) -> Tensor: ...


class FeatureAugment(Protocol):
    """A random change of one utterance's features, (T, F) to (T, F), drawn from torch's CPU generator."""

    stage: ClassVar[str]  # "features"

    @property
    def masks(self) -> "Masks | None":
        """This object if it only sets rectangles to 0, which also works on features computed on the GPU; else None."""

    def __call__(self, features: Tensor) -> Tensor: ...


class Masks(Protocol):
    """Rectangles of features that are set to 0."""

    def draw(self, num_frames: int, dim: int) -> Tensor:
        """Draw rectangles (M, 4) from torch's CPU generator: first frame, end frame, first bin, end bin."""


State = dict[str, Tensor]  # tensors by name, batch first, so that indexing adds and removes streams


class Subsampling(Protocol):
    """Map features (B, T, F) and their lengths (B,) to encoder frames (B, T', D) and their lengths (B,).

    The constructor takes F and D. Padding may contain anything, and the output must be finite at padded frames.
    """

    stride: int  # feature frames per encoder frame

    @property
    def streaming(self) -> "StreamingSubsampling | None":
        """This object if it can continue from chunk to chunk; else None."""

    def __call__(self, features: Tensor, feature_lengths: Tensor) -> tuple[Tensor, Tensor]: ...
    def output_lengths(self, feature_lengths: Lengths) -> Lengths: ...


class StreamingSubsampling(Subsampling, Protocol):
    """A subsampling in which an encoder frame needs at most `look_ahead` feature frames after its own ones."""

    first_frames: int  # own feature frames of the first encoder frame of a stream, at most `stride`
    look_ahead: int  # number of feature frames that an encoder frame needs after its own ones; a multiple of `stride`

    def initial_state(self, batch: int) -> State: ...
    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, ahead: int = 0
    ) -> tuple[Tensor, Tensor, State]:
        """Subsample the next frames of streams.

        Args:
            features: feature frames, (B, T, F). The first frames of a stream begin with `stride - first_frames` frames
                that are not read.
            feature_lengths: number of valid frames, (B,); a multiple of `stride`, except at the end of a stream.
            state: state of the streams.
            ahead: number of feature frames at the end that the next step gets again; a multiple of `stride`, and at
                least `look_ahead`. The output has the encoder frames of all but the last `look_ahead` feature frames.

        Returns:
            The output (B, T', D), its lengths (B,), and the state before the `ahead` frames.
        """


class MaskedNorm(Protocol):
    """Normalise (B, T', D) with padding_mask (B, T'), to (B, T', D)."""

    framewise: ClassVar[bool]  # whether each frame is normalised independently of the others outside training

    def __call__(self, x: Tensor, padding_mask: Tensor) -> Tensor: ...


class Attention(Protocol):
    """Self-attention of a Conformer block; the constructor takes D, the number of heads and dropout."""

    @property
    def streaming(self) -> "StreamingAttention | None":
        """This object if it can attend to frames of earlier chunks; else None."""

    def positions(self, x: Tensor) -> Tensor:
        """Encode the positions of x, (B, T', D); all blocks share the result."""

    def __call__(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Attend from every frame of x, (B, T', D), to the valid frames.

        Args:
            x: (B, T', D).
            positions: output of the method `positions`.
            padding_mask: (B, T').

        Returns:
            (B, T', D), finite at padded frames.
        """


class StreamingAttention(Attention, Protocol):
    """Self-attention that also attends to M frames before the input."""

    def extend(
        self, x: Tensor, before: Callable[[Tensor], Tensor] | None, positions: Tensor, hidden: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend from x to the M frames before it and to its own Q frames.

        Args:
            x: (B, Q, D).
            before: maps the keys and values of x, (B, Q, 2D), to keys and values of the earlier frames, (B, M, 2D);
                None: there are no earlier frames.
            positions: encodings of the distances between queries and keys.
            hidden: True where a key is masked, (B, Q or 1, M + Q).

        Returns:
            (B, Q, D), and the keys and values of all frames, (B, M + Q, 2D).
        """


NormMaker = Callable[[int], nn.Module]  # makes a MaskedNorm, given the number of channels
ActivationMaker = Callable[[], nn.Module]


class Convolution(Protocol):
    """Convolution module of a Conformer block; the constructor takes D, a norm and an activation."""

    norm: MaskedNorm

    @property
    def streaming(self) -> "StreamingConvolution | None":
        """This object if it can convolve with frames of earlier chunks; else None."""

    def __call__(self, x: Tensor, padding_mask: Tensor) -> Tensor: ...


class StreamingConvolution(Convolution, Protocol):
    """A convolution module whose kernel also covers frames before the input."""

    num_kept: int  # number of frames before the input that the kernel reaches

    def extend(self, x: Tensor, before: Callable[[Tensor], Tensor], padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Convolve x together with the frames before it.

        Args:
            x: (B, Q, D).
            before: maps the convolution's input at x, (B, Q, D), to its input at the earlier frames, (B, num_kept, D).
            padding_mask: (B, Q).

        Returns:
            (B, Q, D), and the convolution's input at all frames, (B, num_kept + Q, D).
        """


class Residual(Protocol):
    """Join x (B, T', D) and its residual branch; the norm comes before the branch or after the sum."""

    def enter(self, x: Tensor, norm: nn.Module) -> Tensor: ...
    def leave(self, x: Tensor, branch: Tensor, norm: nn.Module) -> Tensor: ...
    def last(self, dim: int) -> nn.Module: ...


class ConformerPart(Protocol):
    """A block of `encoder=conformer` and of encoders like it; the constructor takes D."""

    dim: int  # number of values per frame of its output
    stride: int  # input frames per output frame

    @property
    def streaming(self) -> "ConformerPart | None":
        """This object if it uses results of earlier chunks, for an encoder that encodes chunk by chunk; else None."""

    def make_norm(self, dim: int) -> nn.Module: ...  # of the kind of its norms, for the end of the encoder
    def positions(self, x: Tensor) -> Tensor:
        """Compute what all blocks need of the positions of x, (B, T', D), once for all of them."""

    def __call__(self, x: Tensor, positions: Tensor, padding_mask: Tensor) -> Tensor:
        """Map x, (B, T', D), with the padding mask of its frames, (B, T'), to the input of the next block."""


Tap = Callable[[Tensor, Tensor], Tensor]
"""Maps a block's output (B, T', D) and padding_mask (B, T') to the input of the next block."""


Targets = Mapping[str, Tensor]
"""What the heads of a batch are trained on: "tokens", (B, U), and "token_lengths", (B,)."""


class Encoded(NamedTuple):
    """Output of an encoder.

    Heads and decoders take it whole, so that what they need of an utterance reaches them without another argument.

    Args:
        out: encoder_out, (B, T', D).
        lengths: encoder_out_lengths, (B,).
        blocks: output of each tapped block before its tap changed it; its frames can differ from those of `out`.
        conditions: ids of labels of the utterances, such as their language, by name, (B,) each.
        num_frames: the lengths on the CPU; None: not known without waiting for the device.
        log_probs: output of the head's frame head for `out`, (B, T', V), where it is computed once for several readers;
            None: each reader computes it.
    """

    out: Tensor
    lengths: Tensor
    blocks: Mapping[int, "Encoded"]
    conditions: Mapping[str, Tensor] = {}  # a dict, because torch.export does not know a mapping proxy
    num_frames: tuple[int, ...] | None = None
    log_probs: Tensor | None = None

    @property
    def frame_counts(self) -> tuple[int, ...]:
        """The lengths on the CPU; without `num_frames`, this waits for the device."""
        return tuple(self.lengths.tolist()) if self.num_frames is None else self.num_frames

    def log_probs_by(self, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return log_probs (B, T', V); `compute`, the frame head's, is called if they are not computed yet."""
        return compute(self.out) if self.log_probs is None else self.log_probs


class Prompt(Protocol):
    """Change the encoder's output by a label of the utterance, such as its language; taps see the output before it.

    The constructor takes output_dim D and the number of values of the label that the setting `label` names.
    `Encoded.conditions` has the label's ids, (B,), with UNKNOWN_ID for an unknown label. Each frame is mapped by
    itself, so that a stream can map the output of each step.
    """

    @property
    def label(self) -> str: ...
    def __call__(self, encoded: Encoded) -> Encoded: ...


Taps = Mapping[int, Tap]
"""Taps by block index, from 0; `asr.components.encoder.stack.run_blocks` applies them."""
NO_TAPS: Taps = MappingProxyType({})


class Block(NamedTuple):
    """A block of an encoder, after which a head can tap the encoder.

    Args:
        module: the block; the encoder calls it with positional arguments only.
        dim: number of values per frame of its output.
        stride: feature frames per output frame.
    """

    module: nn.Module
    dim: int
    stride: int


NamedBlocks = Sequence[tuple[str, Block]]
"""Blocks in order of use, each with its name in the encoder's state dict; `Taps` count them from 0."""


BlockDims = Mapping[str, int]
"""Dimension of each block by name, in order of use."""


class Encoder(Protocol):
    """Encode features (B, T, F) with feature_lengths (B,); `taps` change the inputs of blocks."""

    output_dim: int  # D
    stride: int  # feature frames per encoder frame

    def named_blocks(self) -> NamedBlocks:
        """List the blocks; the list is empty if no block can be tapped.

        A block of n output frames for an utterance of T' encoder frames must have |n * block.stride - T' * stride| less
        than the larger of both strides.
        """

    @property
    def streaming(self) -> "StreamingEncoder | None":
        """This object if it can encode an utterance chunk by chunk; else None."""

    def __call__(self, features: Tensor, feature_lengths: Tensor, taps: Taps = NO_TAPS) -> Encoded: ...
    def output_lengths(self, feature_lengths: Lengths) -> Lengths: ...


class StreamingEncoder(Encoder, Protocol):
    """An encoder whose output for consecutive chunks equals its output for the whole utterance.

    A chunk has `chunk_frames * stride` feature frames, or another multiple of `stride`; the last chunk of a stream may
    have any number. The first chunk of a stream begins with `stride - first_frames` frames that are not read, and then
    has at least one frame of the stream. A step also takes the right context: the first `ahead` feature frames of the
    next chunk, by default `right_frames * stride`.
    """

    chunk_multiple: int  # the number of encoder frames of each chunk is a multiple of this number
    is_right_fixed: bool  # whether the right context is what the subsampling needs, and no other one is possible

    chunk_frames: int | None  # encoder frames of a chunk; None: a chunk is the whole utterance
    chunk_choices: tuple[int, ...]  # chunk sizes of a model without right context, trained for these only; (): any
    left_frames: int  # encoder frames before a chunk that the chunk attends to
    right_frames: int  # right context: encoder frames after a chunk that the chunk attends to
    first_frames: int  # feature frames that the first encoder frame needs besides right context, at most `stride`

    def initial_state(self, batch: int, left_frames: int | None = None) -> State: ...
    def step(
        self, features: Tensor, feature_lengths: Tensor, state: State, taps: Taps = NO_TAPS, ahead: int | None = None
    ) -> tuple[Encoded, State]: ...


class Decoders(NamedTuple):
    """Names of the decoders of a head, in order of preference; `asr.core.decoder_choice` reads them.

    Args:
        greedy: the greedy decoders, each for another part of the head.
        beam: the beam searches; the first ones are those over the parts of `greedy`, in the same order.
    """

    greedy: tuple[str, ...]
    beam: tuple[str, ...]


class Head(Protocol):
    """Output layers and their loss.

    The constructor takes output_dim D, block_dims (`BlockDims` of the encoder) and vocab_size V. A head stores no state
    between calls. `losses` returns each loss by name, (B,): sums over an utterance, not means. "loss" is minimised; the
    others, which `loss_names` lists, are logged.
    """

    loss_names: tuple[str, ...]  # without "loss"
    decoders: Decoders
    views: int  # number of masked copies of each utterance in a training batch: all first copies, then all second

    @property
    def taps(self) -> Taps: ...
    @property
    def frame_head(self) -> "FrameHead | None": ...
    @property
    def restrict(self) -> Callable[[Tensor], None] | None:
        """Function that lets searches write only the allowed tokens, (V,), until its next call; None: there is none.

        All output layers that searches read give other tokens no probability (`asr.base.kernels.token_mask`). Losses
        and taps do not change. The blank is always allowed; if all tokens are, no output changes.
        """

    def losses(self, encoded: Encoded, targets: Targets) -> Mapping[str, Tensor]: ...
    def min_frames(self, tokens: list[int]) -> int:
        """Minimum number of frames of encoder_out, and in training of each tapped block, for `tokens`."""

    def cells(self, frames: Lengths, tokens: Lengths) -> Lengths:
        """Number of elements of the head's largest tensor for one utterance with these numbers of frames and tokens."""


class FrameHead(Head, Protocol):
    """A head with a distribution over tokens for each frame; alignment, posteriors and confidence require it."""

    def log_probs(self, encoder_out: Tensor) -> Tensor:
        """Map (B, T', D) to (B, T', V)."""


class Predictor(Protocol):
    """A transducer's prediction network: tokens (B, U) to (B, U + 1, P); the constructor takes vocab_size V.

    Its state is a tensor, batch first, so that hypotheses are added and removed by indexing. The first step takes
    BLANK_ID.
    """

    output_dim: int  # P

    def __call__(self, tokens: Tensor) -> Tensor: ...
    def initial_state(self, batch: int) -> Tensor: ...
    def step(self, tokens: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Take one token per hypothesis, (B,), and the state before it; return (B, P) and the state after it."""


@runtime_checkable
class StartsFromFrames(Protocol):
    """A part of a head that can begin with the function of a linear layer on frames, such as a CTC layer."""

    def start_from_frames(self, weight: Tensor, bias: Tensor) -> bool:
        """Take the layer's weight (V, D) and bias (V,); return whether the part's settings allow it."""


class JointNetwork(Protocol):
    """Map the projections of a frame and of the tokens before it, each (..., J), to logits (..., V).

    If durations are also predicted, their logits come after the logits of tokens: (..., V + number of durations).
    """

    def __call__(self, frames: Tensor, tokens: Tensor) -> Tensor: ...
    def of_frames(self, encoder_out: Tensor) -> Tensor: ...
    def of_tokens(self, predictor_out: Tensor) -> Tensor: ...


class TransducerHead(Head, Protocol):
    """A head with a prediction network and a joiner."""

    predictor: Predictor
    joiner: JointNetwork
    durations: tuple[int, ...]  # of a token or a blank, in encoder frames, at least one for a blank; (): not predicted
    frame_joiner: JointNetwork | None  # the joiner without durations; None: durations are predicted


class Span(NamedTuple):
    """Frames of a token, from `start` to `end`, excluding `end`."""

    start: int
    end: int


class Memory(NamedTuple):
    """Encoder frames as keys and values for a token decoder.

    Args:
        keys_values: for each block, (B, 2, H, T', D / H).
        padding: True = padding, (B, T').
    """

    keys_values: list[Tensor]
    padding: Tensor


Cache = list[Tensor]  # keys and values of the tokens of N sequences, for each block: (N, 2, H, U, D / H)


class Forced(NamedTuple):
    """Output of teacher forcing: each token is predicted from the correct tokens before it.

    Args:
        log_probs: (N, U + 1, V).
        targets: the tokens and the end of the sequence, (N, U + 1).
        padding: True = padding of the targets, (N, U + 1).
    """

    log_probs: Tensor
    targets: Tensor
    padding: Tensor


class TokenDecoder(Protocol):
    """Autoregressive decoder, `token_decoder` of a head: it predicts the next token from earlier tokens and all frames.

    Shapes: N sequences; N is a multiple of B, with N / B sequences per utterance.
    """

    def remember(self, encoder_out: Tensor, lengths: Tensor) -> Memory: ...
    def start(self, number: int) -> Cache: ...
    def __call__(self, tokens: Tensor, memory: Memory, cache: Cache) -> tuple[Tensor, Cache]: ...
    def force(self, tokens: Tensor, token_lengths: Tensor, memory: Memory) -> Forced: ...


class AttentionHead(Head, Protocol):
    """A head with both a token decoder and a frame head."""

    token_decoder: TokenDecoder

    @property
    def frame_head(self) -> FrameHead: ...


class TokenModel(Protocol):
    """A neural language model over a tokenizer's tokens; the constructor takes vocab_size V.

    BOUNDARY_ID is the first input of a text, is predicted at the text's end, and never occurs inside a text.
    Log_probs do not depend on how a text is split into calls, nor on padding tokens after it. The state after padding
    is undefined.
    """

    vocab_size: int  # V

    def initial_state(self, batch: int) -> State:
        """Return the state before BOUNDARY_ID, batch first, so that hypotheses are added and removed by indexing."""

    def __call__(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Map tokens (B, U) to log_probs (B, U, V) of each next token, and to the state after the last token."""

    def join(self, states: Sequence[State]) -> State:
        """Concatenate states to one batch, in this order; they may follow different numbers of tokens."""


class Hypothesis(NamedTuple):
    """Recognised tokens of an utterance.

    Args:
        tokens: token ids without blanks.
        score: score by which the decoder ranks hypotheses (natural logarithm).
        frames: frames of each token, in a stream counted from the stream's beginning; None: the frame head aligns the
            tokens.
        confidences: confidence of each token, from 0 to 1; None: computed from the entropy of the frame head.
        num_final: in a stream, number of tokens that no longer change.
        has_ends: whether `frames` cover the full duration of each token, or only the frame that emits it.
    """

    tokens: list[int]
    score: float
    frames: list[Span] | None = None
    confidences: list[float] | None = None
    num_final: int = 0
    has_ends: bool = False


class Tunable(NamedTuple):
    """A numeric setting of a decoder that can be tuned on a dev set.

    Args:
        value: current value.
        trials: values to try, in order; a search begins with the middle value.
    """

    value: float
    trials: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Biasing:
    """Hotwords of a decoder, a request, an utterance or a stream, compiled for one decoder; threads can share it.

    Args:
        phrases: normalised phrases that a search prefers.
        impossible: maps phrases that cannot be recognised to reasons.
        lists: the compiled phrases, which only the decoder reads.
    """

    phrases: Sequence[str] = ()
    impossible: Mapping[str, str] = field(default_factory=dict)
    lists: tuple[Any, ...] = ()


NO_BIASING = Biasing()
Biasings = Sequence[Biasing] | None  # of each utterance of a batch; None: none has its own

# Compiles phrases as users write them; None instead of a score: the decoder's bonus for each word (natural logarithm).
HotwordCompiler = Callable[[Iterable[str], float | None], Biasing]


class Decoder(Protocol):
    """Search for the tokens of encoder_out; the constructor takes head, tokenizer and normaliser.

    `evidence` computes the input of a search once per batch; `search` can then run with several values of the tunable
    settings. `search` returns at least one hypothesis per utterance, best hypothesis first. If the head's frame_head is
    None, the hypotheses must have frames and confidences.

    No decoder stores the hotwords of a request. A decoder without `compile_hotwords` takes no biasing arguments.
    """

    needs: tuple[str, ...]  # properties of the head that must not be None
    max_seconds: float | None  # maximum duration of audio per search; None: any length
    max_hypotheses: int  # per utterance
    biasing: Biasing  # hotwords of the decoder's own settings, which apply to all utterances
    compile_hotwords: HotwordCompiler | None  # for hotwords of single utterances and streams; None: it prefers none

    @property
    def tunable(self) -> Mapping[str, Tunable]: ...
    @property
    def streaming(self) -> "StreamingDecoder | None":
        """This object if it can decode chunk by chunk; else None."""

    @property
    def description(self) -> str: ...
    def evidence(self, encoded: Encoded) -> Any: ...
    def search(self, evidence: Any, biasings: Biasings = None, **values: float) -> list[list[Hypothesis]]:
        """Search with a result of `evidence`.

        Args:
            evidence: the result.
            biasings: hotwords of each utterance, in addition to the decoder's own.
            values: values of tunable settings, which replace the decoder's own.
        """


class StreamingDecoder(Decoder, Protocol):
    """A decoder that continues from chunk to chunk. A state belongs to one stream and must be used only once."""

    def initial_state(self, biasing: Biasing = NO_BIASING) -> Any:
        """Begin a stream with hotwords in addition to the decoder's own."""

    def replace_hotwords(self, state: Any, biasing: Biasing) -> Any:
        """Replace the hotwords of a stream; the new ones apply from the next word on."""

    def step(self, encoded: Encoded, states: Sequence[Any]) -> tuple[list[list[Hypothesis]], list[Any]]:
        """Decode the next chunk of each stream.

        Returns:
            The hypotheses of each stream so far, best hypothesis first; and the next state of each stream.
        """

    def forget(self, state: Any, num_tokens: int) -> Any:
        """Drop the first `num_tokens` tokens, which are final, of all hypotheses, so that the state does not grow."""

    def decide(self, state: Any, tokens: list[int]) -> Any:
        """Make `tokens`, a prefix of the best hypothesis, final: prune all hypotheses that do not begin with it."""

    def settle(self, state: Any) -> tuple[Hypothesis, Any]:
        """Make the best hypothesis final; return it and a state without tokens, from which the stream continues."""


class Metric(Protocol):
    """Compute numbers of a validation from all of its references and hypotheses, normalised as for the WER.

    A number is logged as valid/<name>. The order of the utterances is that of their ids.
    """

    def __call__(self, references: Sequence[str], hypotheses: Sequence[str]) -> Mapping[str, float]: ...


class Moment(NamedTuple):
    """Progress of a run before an optimizer step.

    Args:
        step: optimizer step, from 0.
        total_steps: number of optimizer steps of the whole run.
        epoch: number of passes over the training data so far, including the fraction of the current pass.
    """

    step: int
    total_steps: int
    epoch: float


@runtime_checkable
class FollowsTraining(Protocol):
    """A module of the model that changes as the run proceeds, such as a dropout that falls with the steps. Optional."""

    def on_moment(self, moment: Moment) -> None:
        """Prepare for the next training batch; called for each batch, on every process, also in a resumed run."""


class Schedule(Protocol):
    """Return the factor by which the optimizer's learning rate is multiplied at a moment of the run."""

    def __call__(self, moment: Moment) -> float: ...


class WeightPlace(NamedTuple):
    """Place of a weight in the encoder.

    Args:
        depth: number of the weight's block from the input on, from 1; 0 in the front-end.
        matrices: number of matrices of equal size that are stacked in the weight of a linear layer in the blocks: 1,
            or what the module with the layer states, as in `self.stacked_matrices = {"qkv": 3}`. 0: any other weight,
            such as a kernel, a norm, a bias, an embedding, or a layer of the front-end.
    """

    depth: int
    matrices: int


class OptimizerMaker(Protocol):
    """Make the optimizer of named parameters; groups of parameters may have their own settings.

    `places` has the place of each weight of the encoder by its name; weights after the last block have no place. The
    optimizer's `defaults["lr"]` is the learning rate that is logged, at the schedule's peak.
    """

    def __call__(
        self, named_parameters: Iterable[tuple[str, nn.Parameter]], places: Mapping[str, WeightPlace]
    ) -> Optimizer: ...


class Adapter(Protocol):
    """Small trained weights in addition to the frozen weights of a trained model, the base."""

    def insert(self, model: nn.Module) -> None:
        """Add the adapter to a model in place and freeze all other weights; outputs and tensor names do not change."""

    def merged(self, base: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Merge the trained weights, `own`, into the weights of the base."""
