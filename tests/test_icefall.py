"""icefall's Zipformers: read, written back with equal tensors, and refused by their kind."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path, PosixPath
from typing import Any

import pytest
import sentencepiece
import torch
from torch import Tensor

from asr.apps.zoo import icefall
from asr.base.settings.conf import default_settings
from asr.convert import main
from asr.core.build import build_features
from asr.core.checkpoint.load import load_recognizer
from asr.core.recognition.cached_stream import CachedStream
from asr.core.recognition.captions import StreamSettings
from asr.core.recognition.feature_stream import Remainder, stream_features
from asr.core.recognition.latency import latencies, set_latency
from asr.core.run.initialization import with_parts
from asr.errors import InputError
from asr.merge import main as merge
from asr.train import train
from tests.conftest import STACKS, settings_with, tone_corpus
from tests.refusals import mentions, refused
from tests.test_parakeet import sound
from tests.test_train import losses
from tests.tones import sentences

SAMPLE_RATE, NUM_MEL_BINS = 16_000, 80
SIZES = {**STACKS, "dims": [16, 24, 20], "heads": [4, 8, 4]}
CHANNELS, QUERY_DIM, VALUE_DIM, POSITION_DIM = [2, 3, 4], 6, 5, 8


def subwords(cased: Callable[[str], str] = str.upper) -> bytes:
    """Train a SentencePiece model as icefall's recipes do."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([cased(text) for text in sentences(60, seed=1)]),
        model_writer=model,
        vocab_size=24,
        hard_vocab_limit=False,
        model_type="unigram",
        character_coverage=1.0,
        user_defined_symbols=["<blk>", "<sos/eos>"],
        unk_id=2,
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


def layer(dim: int, heads: int, inner: int, kernel: int, causal: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of icefall's layer; `causal`: for streaming."""
    gated = dim * 3 // 4
    kernels = {".causal_conv": (dim, 1, kernel // 2 + 1), ".chunkwise_conv": (dim, 1, kernel)}
    kernels = kernels if causal else {"": (dim, 1, kernel)}
    depthwise = [{f"conv_module{n}.depthwise_conv{name}": size for name, size in kernels.items()} for n in (1, 2)]
    linear = {
        "self_attn1.in_proj": (heads * VALUE_DIM, dim),
        "self_attn1.out_proj": (dim, heads * VALUE_DIM),
        "self_attn2.in_proj": (heads * VALUE_DIM, dim),
        "self_attn2.out_proj": (dim, heads * VALUE_DIM),
        "feed_forward1.in_proj": (inner * 3 // 4, dim),
        "feed_forward1.out_proj": (dim, inner * 3 // 4),
        "feed_forward2.in_proj": (inner, dim),
        "feed_forward2.out_proj": (dim, inner),
        "feed_forward3.in_proj": (inner * 5 // 4, dim),
        "feed_forward3.out_proj": (dim, inner * 5 // 4),
        "nonlin_attention.in_proj": (3 * gated, dim),
        "nonlin_attention.out_proj": (dim, gated),
        "conv_module1.in_proj": (2 * dim, dim),
        **depthwise[0],
        "conv_module1.out_proj": (dim, dim),
        "conv_module2.in_proj": (2 * dim, dim),
        **depthwise[1],
        "conv_module2.out_proj": (dim, dim),
        "self_attn_weights.in_proj": (heads * (2 * QUERY_DIM + 4), dim),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in linear.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    if causal:
        shapes |= {f"conv_module{n}.depthwise_conv.chunkwise_conv_scale": (2, dim, kernel) for n in (1, 2)}
    shapes["self_attn_weights.linear_pos.weight"] = (heads * 4, POSITION_DIM)
    shapes |= {f"{name}bypass_scale": (dim,) for name in ("", "bypass.", "bypass_mid.")}
    return shapes | {"norm.log_scale": (), "norm.bias": (dim,)}


CTC, TRANSDUCER = "ctc_output", "joiner"
HEADS = {"ctc": (CTC,), "transducer": (TRANSDUCER,), "both": (CTC, TRANSDUCER)}
PREDICTOR_DIM, JOINT_DIM, CONTEXT = 12, 10, 2


def head_shapes(heads: Sequence[str], vocab_size: int, context: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of icefall's heads."""
    dim, shapes = max(SIZES["dims"]), dict[str, tuple[int, ...]]()
    if CTC in heads:
        shapes |= {"ctc_output.1.weight": (vocab_size, dim), "ctc_output.1.bias": (vocab_size,)}
    if TRANSDUCER in heads:
        shapes |= {"decoder.embedding.weight": (vocab_size, PREDICTOR_DIM)}
        shapes |= {"decoder.conv.weight": (PREDICTOR_DIM, 4, context)} if context > 1 else {}
        linear = {"joiner.encoder_proj": (JOINT_DIM, dim), "joiner.decoder_proj": (JOINT_DIM, PREDICTOR_DIM)}
        linear |= {"joiner.output_linear": (vocab_size, JOINT_DIM), "simple_am_proj": (vocab_size, dim)}
        linear |= {"simple_lm_proj": (vocab_size, PREDICTOR_DIM)}
        shapes |= {f"{name}.weight": shape for name, shape in linear.items()}
        shapes |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    return shapes


def checkpoint(
    vocab_size: int, heads: Sequence[str] = (CTC,), context: int = CONTEXT, causal: bool = False
) -> dict[str, Tensor]:
    """Make icefall's tensors of a Zipformer, with random values; `causal`: for streaming."""
    first, second, third = CHANNELS
    convolutions = {"conv.0": (first, 1, 3, 3), "conv.4": (second, first, 3, 3), "conv.7": (third, second, 3, 3)}
    convolutions["convnext.depthwise_conv"] = (third, 1, 7, 7)
    convolutions["convnext.pointwise_conv1"] = (3 * third, third, 1, 1)
    convolutions["convnext.pointwise_conv2"] = (third, 3 * third, 1, 1)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in convolutions.items():
        shapes |= {f"encoder_embed.{name}.weight": shape, f"encoder_embed.{name}.bias": shape[:1]}
    dim = SIZES["dims"][0]
    shapes |= {"encoder_embed.out.weight": (dim, third * 19), "encoder_embed.out.bias": (dim,)}
    shapes |= {"encoder_embed.out_norm.log_scale": (), "encoder_embed.out_norm.bias": (dim,)}
    lists = (SIZES[key] for key in ("layers", "strides", "dims", "heads", "feed_forward_dims", "kernel_sizes"))
    for stack, (layers, stride, *sizes) in enumerate(zip(*lists, strict=True)):
        begin = f"encoder.encoders.{stack}."
        if stride > 1:
            shapes |= {f"{begin}downsample.bias": (stride,), f"{begin}out_combiner.bypass_scale": (sizes[0],)}
        inner = f"{begin}encoder.layers" if stride > 1 else f"{begin}layers"
        for number in range(layers):
            shapes |= {f"{inner}.{number}.{name}": shape for name, shape in layer(*sizes, causal).items()}
    shapes["encoder.downsample_output.bias"] = (2,)
    shapes |= head_shapes(heads, vocab_size, context)
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=generator)
        tensors[name] = noise / noise[0].numel() ** 0.5 if len(shape) > 1 else 0.3 * noise
        if ".layers." in name and name.split(".")[-2].isdigit():  # the parameter that icefall does not use
            tensors[name] = torch.full(shape, 0.5)
    if CTC in heads:
        tensors["ctc_output.1.weight"] *= 5.0  # so that frames have different tokens
        tensors["ctc_output.1.bias"][:3] -= 100.0  # and rarely those that spell nothing
    if TRANSDUCER in heads:
        tensors["joiner.encoder_proj.weight"] *= 5.0
        tensors["joiner.output_linear.weight"] *= 5.0
        tensors["joiner.output_linear.bias"][1:3] -= 100.0
    return tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of icefall with a checkpoint and its SentencePiece model."""
    made = tmp_path / "theirs"
    made.mkdir()
    (made / "bpe.model").write_bytes(subwords())
    torch.save({"model": checkpoint(vocabulary().vocab_size())}, made / "pretrained.pt")
    return made


def vocabulary() -> Any:
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(subwords())
    return processor


def read(folder: Path, name: str = "ours") -> Path:
    out = folder.parent / name
    assert main([str(folder), "-o", str(out)]) == 0
    return out


def test_sizes_follow_from_the_shapes_of_the_tensors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recognizer = load_recognizer(read(folder))
    encoder: Any = recognizer.model.encoder
    assert [(block.dim, block.stride) for _, block in encoder.named_blocks()] == [(16, 2), (24, 8), (24, 8), (20, 4)]
    config = icefall.encoder_config(checkpoint(24))
    assert {key: config[key] for key in SIZES} == SIZES
    block = config["block"]
    assert (block["query_head_dim"], block["value_head_dim"]) == (QUERY_DIM, VALUE_DIM)
    assert (block["position_head_dim"], block["position_dim"]) == (4, POSITION_DIM)
    assert config["subsampling"]["channels"] == CHANNELS


def test_the_head_writes_the_pieces_of_icefalls_tokens(folder: Path) -> None:
    """icefall's blank, boundary and unknown piece are 0, 1 and 2; asr's blank and unknown piece are 0 and 1."""
    model: Any = load_recognizer(read(folder)).model
    processor = vocabulary()
    theirs = torch.load(folder / "pretrained.pt", weights_only=True)["model"]["ctc_output.1.bias"]
    names = [*model.tokenizer.piece_scores]  # in SentencePiece's notation
    assert names[:3] == ["<blank>", "<unk>", "<sos/eos>"]
    assert model.head.linear.bias[0] == theirs[0]
    for number in range(1, processor.vocab_size()):
        token = names.index(processor.id_to_piece(number))
        assert model.head.linear.bias[token] == theirs[number]
    text = sentences(1, seed=7)[0].upper()
    pieces = [processor.id_to_piece(number) for number in processor.encode(text)]
    assert [names[token] for token in model.tokenizer.encode(text)] == pieces
    assert model.tokenizer.decode([names.index("<sos/eos>")]) == ""


BIASES = ("joiner.encoder_proj.bias", "joiner.decoder_proj.bias")


@pytest.mark.parametrize(
    ("heads", "context", "causal"),
    [*((heads, context, False) for heads in HEADS for context in (1, 3)), ("both", 2, True)],
)
def test_tensors_written_back_equal_those_read_to_the_bit(heads: str, context: int, causal: bool, folder: Path) -> None:
    """The joiner adds two biases, of which asr has the sum; the simple losses need no tensors in asr."""
    tensors = checkpoint(vocabulary().vocab_size(), HEADS[heads], context, causal)
    torch.save({"model": tensors}, folder / "pretrained.pt")
    back = folder.parent / "back"
    assert main([str(read(folder)), "--to", "icefall", "-o", str(back)]) == 0
    theirs = torch.load(folder / "pretrained.pt", weights_only=True)["model"]
    again = torch.load(back / "pretrained.pt", weights_only=True)["model"]
    assert again.keys() == {name for name in theirs if not name.startswith("simple_")}
    assert all(torch.equal(again[name], theirs[name]) for name in again.keys() - {*BIASES})
    if TRANSDUCER in HEADS[heads]:
        assert torch.equal(sum(again[name] for name in BIASES), sum(theirs[name] for name in BIASES))


def test_the_tokenizer_is_written_back(folder: Path) -> None:
    back = folder.parent / "back"
    assert main([str(read(folder)), "--to", "icefall", "-o", str(back)]) == 0
    written = sentencepiece.SentencePieceProcessor()
    written.load_from_serialized_proto((back / "bpe.model").read_bytes())
    processor = vocabulary()
    names = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    assert [written.id_to_piece(number) for number in range(written.vocab_size())] == names
    assert written.unk_id() == 2
    assert (back / "tokens.txt").read_text().splitlines() == [f"{name} {number}" for number, name in enumerate(names)]
    text = sentences(1, seed=7)[0].upper()
    assert written.encode(text) == processor.encode(text)
    first, second = (load_recognizer(read(place, name)) for place, name in ((folder, "first"), (back, "second")))
    texts = {made.transcribe([sound(1.5)], sample_rate=SAMPLE_RATE)[0].text for made in (first, second)}
    assert len(texts) == 1
    assert texts != {""}


def test_a_checkpoint_of_a_training_is_read_as_its_model_alone(folder: Path) -> None:
    """The last epoch of the folder is taken; settings of the training may be paths, and other tensors are not read."""
    tensors = torch.load(folder / "pretrained.pt", weights_only=True)["model"]
    (folder / "pretrained.pt").unlink()
    others = {"optimizer": {"state": {0: torch.ones(3)}}, "exp_dir": PosixPath("zipformer/exp"), "cur_epoch": 3}
    unneeded = {"simple_am_proj.weight": torch.ones(2, 2), "attention_decoder.embed.weight": torch.ones(2, 2)}
    for epoch, scale in ((9, 1.0), (10, 2.0)):
        changed = {name: scale * tensor for name, tensor in tensors.items()}
        torch.save({"model": changed | unneeded, **others}, folder / f"epoch-{epoch}.pt")
    last, named = load_recognizer(read(folder)), load_recognizer(read(folder / "epoch-9.pt", "ninth"))
    weights: list[Any] = [made.model.state_dict()["head.linear.bias"] for made in (last, named)]
    assert torch.equal(weights[0], 2 * weights[1])


def plain_search(model: Any, encoder_out: Tensor) -> list[int]:
    """Search greedily with at most one token in each frame of encoder_out (T', D): Graves' search, frame by frame."""
    tokens: list[int] = []
    for frame in encoder_out:
        before = model.predictor(torch.tensor([tokens], dtype=torch.int64))[0, -1]
        logits = model.joiner(model.joiner.of_frames(frame), model.joiner.of_tokens(before))
        token = int(logits.argmax())
        tokens += [token] if token else []
    return tokens


@torch.no_grad()
@pytest.mark.parametrize("heads", ["transducer", "both"])
def test_a_transducer_is_read_with_icefalls_search_and_its_ctc_head_beside_it(heads: str, folder: Path) -> None:
    """Each frame has at most one token."""
    torch.save({"model": checkpoint(vocabulary().vocab_size(), HEADS[heads])}, folder / "pretrained.pt")
    recognizer = load_recognizer(read(folder))
    model: Any = recognizer.model
    predictor, joiner = model.head.predictor, model.head.joiner
    assert (predictor.output_dim, predictor.num_tokens) == (PREDICTOR_DIM, CONTEXT)
    assert joiner.of_frames.out_features == JOINT_DIM
    assert (model.head.ctc is not None) == (heads == "both")
    texts = set()
    for seed in range(4):
        features = model.features(sound(1.5, seed=seed))
        encoded = model(features[None], torch.tensor([len(features)]))
        expected = model.tokenizer.decode(plain_search(model.head, encoded.out[0]))
        actual = recognizer.transcribe([sound(1.5, seed=seed)], sample_rate=SAMPLE_RATE)[0].text
        assert actual == expected
        texts.add(actual)
    assert len(texts - {""}) > 1
    if heads == "both":
        other = load_recognizer(folder.parent / "ours", decode={"name": "greedy"})
        assert other.transcribe([sound(1.5)], sample_rate=SAMPLE_RATE)[0].text


@pytest.mark.parametrize("decode", ["transducer_greedy", "greedy"])
def test_the_words_of_a_stream_are_those_of_one_pass(
    decode: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recordings have any number of frames after the last chunk; a chunk of icefall's 16 frames is the default."""
    tensors = checkpoint(vocabulary().vocab_size(), HEADS["both"], causal=True)
    torch.save({"model": tensors}, folder / "pretrained.pt")
    out = read(folder)
    assert mentions(capsys.readouterr().out, "--chunk-size 16 --left-context-frames 128")
    recognizer = load_recognizer(out, decode={"name": decode})
    encoder: Any = recognizer.model.encoder
    assert (encoder.chunk_frames, encoder.left_frames, encoder.right_frames) == (8, 64, 4)
    assert latencies(recognizer.model) == [0.32, 0.64, 1.28]
    texts = set()
    for latency in (None, 0.64):
        if latency is not None:
            set_latency(recognizer.model, latency)
        for seed, seconds in enumerate((0.02, 0.1, 0.7, 1.03, 1.5, 1.61)):
            waveform = sound(seconds, seed=seed)
            stream = CachedStream(recognizer, StreamSettings(endpoint_seconds=None))
            final = [word.text for piece in waveform.split(1_000) for word in stream.feed(piece).final]
            final += [word.text for word in stream.finish().final]
            text = recognizer.transcribe([waveform], sample_rate=SAMPLE_RATE)[0].text
            assert " ".join(final) == text
            texts.add(text)
    assert len(texts) > 1


def test_a_stream_with_another_chunk_or_right_context_is_refused(folder: Path) -> None:
    tensors = checkpoint(vocabulary().vocab_size(), HEADS["transducer"], causal=True)
    torch.save({"model": tensors}, folder / "pretrained.pt")
    recognizer = load_recognizer(read(folder))
    with refused(InputError, "chunk_seconds ... 0.32, 0.64 ... 1.28 ... got 0.2"):
        CachedStream(recognizer, StreamSettings(chunk_seconds=0.2))
    with refused(InputError, "right_seconds ... 0.16 ... got 0"):
        CachedStream(recognizer, StreamSettings(right_seconds=0.0))
    encoder: Any = recognizer.model.encoder
    encoder.chunk_choices = ()  # of a model that was trained with whole utterances
    with refused(InputError, "chunk_seconds ... 0.08 ... got 0.2"):
        CachedStream(recognizer, StreamSettings(chunk_seconds=0.2))


CHARACTERS = ["<blk>", "<sos/eos>", "<unk>", *"ABCDEF", *"天气好"]  # of a recipe without spaces
SPELT_LAST = ["<blk>", *"ABCDEF", "▁", "<unk>", "<sos/eos>"]  # of another recipe, with spaces


def write_list(path: Path, names: Sequence[str], separator: str = " ") -> None:
    path.write_text("".join(f"{name}{separator}{number}\n" for number, name in enumerate(names)), encoding="utf-8")


@pytest.mark.parametrize(
    ("names", "text"), [(CHARACTERS, "天气A好"), (SPELT_LAST, "A BAD CAFE")], ids=["characters", "with spaces"]
)
def test_a_list_of_characters_is_read_and_written_back(names: list[str], text: str, folder: Path) -> None:
    """The symbols after the outputs of the head are those of a lexicon; one recipe separates numbers by tabs."""
    (folder / "bpe.model").unlink()
    symbols = ["#0", "#1"] if names == CHARACTERS else []
    write_list(folder / "tokens.txt", [*names, *symbols], " " if symbols else "\t")
    torch.save({"model": checkpoint(len(names), HEADS["both"])}, folder / "pretrained.pt")
    model: Any = load_recognizer(read(folder)).model
    theirs = torch.load(folder / "pretrained.pt", weights_only=True)["model"]
    tokens = model.tokenizer.encode(text)
    assert model.tokenizer.decode(tokens) == text
    rows = model.head.predictor.embedding.weight[tokens]
    prefixed = ["▁", *text.replace(" ", "▁")] if "▁" in names else [*text]
    assert torch.equal(rows, theirs["decoder.embedding.weight"][[names.index(piece) for piece in prefixed]])
    with pytest.raises(InputError, match="'x'"):
        model.tokenizer.encode("x")
    back = folder.parent / "back"
    assert main([str(folder.parent / "ours"), "--to", "icefall", "-o", str(back)]) == 0
    listed = (back / "tokens.txt").read_text(encoding="utf-8").splitlines()
    assert listed == [f"{name} {number}" for number, name in enumerate(names)]
    again = torch.load(back / "pretrained.pt", weights_only=True)["model"]
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in again.items() if name not in BIASES)
    (back / "tokens.txt").unlink()
    second = load_recognizer(read(back, "second")).model
    assert second.tokenizer.encode(text) == tokens


def test_a_list_of_pieces_is_split_into_the_fewest_and_a_named_file_replaces_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says that pieces may differ; with the SentencePiece model they are those of the training."""
    (folder / "bpe.model").rename(folder.parent / "elsewhere.model")
    processor = vocabulary()
    names = [processor.id_to_piece(number) for number in range(processor.vocab_size())]
    write_list(folder / "tokens.txt", names)
    tokenizer = load_recognizer(read(folder)).model.tokenizer
    assert "fewest pieces" in capsys.readouterr().out
    text = sentences(1, seed=7)[0].upper()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) <= len(processor.encode(text))
    out = folder.parent / "named"
    assert main([str(folder), "--tokenizer", str(folder.parent / "elsewhere.model"), "-o", str(out)]) == 0
    assert "fewest pieces" not in capsys.readouterr().out
    assert len(load_recognizer(out).model.tokenizer.encode(text)) == len(processor.encode(text))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["<blk> 0", "A"], "tokens.txt:2 ... number; got 'A'"),
        (["<blk> 0", "A 0"], "tokens.txt:2 ... number; got 'A 0'"),
        (["<blk> 0", "<unk> 1", "A 7"], "tokens.txt ... 3 ... 3"),
        (["<blk> 0", "A 1", "A 2"], "tokens.txt ... 3 ... 3"),
        (["<blk> 0", "A 1", "B 2"], "tokens.txt ... <unk>"),
        (["A 0", "<unk> 1", "B 2"], "tokens.txt ... <blk>; got 'A'"),
    ],
)
def test_a_damaged_list_is_refused(lines: list[str], expected: str, folder: Path) -> None:
    (folder / "bpe.model").unlink()
    (folder / "tokens.txt").write_text("\n".join(lines))
    torch.save({"model": checkpoint(3)}, folder / "pretrained.pt")
    with refused(InputError, expected):
        read(folder)


def averaged(folder: Path, epoch: int, batches: int, scale: float) -> dict[str, Tensor]:
    """Save the checkpoint of an epoch with an average of the weights since the beginning, which it returns."""
    average = {name: scale * tensor for name, tensor in checkpoint(vocabulary().vocab_size()).items()}
    entries = {"batch_idx_train": batches, "average_period": 200, "model_avg": average}
    torch.save({"model": checkpoint(vocabulary().vocab_size()), **entries}, folder / f"epoch-{epoch}.pt")
    return average


def test_the_average_of_the_last_epochs_is_that_between_two_averages_since_the_beginning(folder: Path) -> None:
    """An average changes each 200 batches: after 1,090 it covers 1,000, after 450 it covers 400."""
    end, begin = averaged(folder, 5, 1_090, 1.0), averaged(folder, 2, 450, 0.5)
    name = "ctc_output.1.bias"
    expected = {3: (1_000 * end[name].double() - 400 * begin[name].double()) / 600, 5: end[name].double()}
    for number, bias in expected.items():
        out = folder.parent / f"last {number}"
        assert main([str(folder), "--average", str(number), "-o", str(out)]) == 0
        model: Any = load_recognizer(out).model
        # icefall's blank, boundary and unknown piece are asr's 0, 2 and 1
        torch.testing.assert_close(model.head.linear.bias[[0, 2, 1]].double(), bias[:3], rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(0, "--average ... 5 ... epoch-5.pt; got 0"), (6, "--average ... 5 ... got 6"), (1, "epoch-4.pt ... epoch-5.pt")],
)
def test_an_average_of_epochs_that_do_not_exist_is_refused(number: int, expected: str, folder: Path) -> None:
    averaged(folder, 5, 1_090, 1.0)
    with refused(InputError, expected):
        main([str(folder / "epoch-5.pt"), "--average", str(number), "-o", str(folder.parent / "ours")])


def test_an_average_without_its_entries_or_of_another_training_is_refused(folder: Path) -> None:
    command = ["--average", "1", "-o", str(folder.parent / "ours")]
    with refused(InputError, "--average ... epoch-N.pt; got pretrained.pt"):
        main([str(folder / "pretrained.pt"), *command])
    averaged(folder, 5, 1_090, 1.0)
    averaged(folder, 4, 1_200, 1.0)
    with refused(InputError, "epoch-4.pt ... epoch-5.pt"):
        main([str(folder / "epoch-5.pt"), *command])
    averaged(folder, 4, 0, 1.0)
    with refused(InputError, "epoch-4.pt ... batch_idx_train; got 0"):
        main([str(folder / "epoch-5.pt"), *command])
    torch.save({"model": checkpoint(4)}, folder / "epoch-4.pt")
    with refused(InputError, "epoch-4.pt ... model_avg"):
        main([str(folder / "epoch-5.pt"), *command])


def test_a_parameter_that_icefall_does_not_use_is_reported_if_it_was_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(folder)
    assert "bypass_scale" not in capsys.readouterr().out
    tensors = torch.load(folder / "pretrained.pt", weights_only=True)["model"]
    unused = [name for name in tensors if ".layers." in name and name.split(".")[-2].isdigit()]
    torch.save({"model": tensors | {unused[0]: tensors[unused[0]] + 0.1}}, folder / "pretrained.pt")
    read(folder, "changed")
    assert f"{unused[0]}" in capsys.readouterr().out


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def renamed(old: str, new: str) -> Change:
    return lambda tensors: {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (renamed("self_attn_weights.", "self_attn."), "pruned_transducer_stateless7"),
        (lambda tensors: {"encoder.encoder.layers.0.norm.bias": torch.ones(2)}, "Conformer"),
        (lambda tensors: {"encoder.emformer_layers.0.norm.bias": torch.ones(2)}, "ConvEmformer"),
        (renamed("ctc_output", "ctc_other"), "joiner ... ctc_output"),
        (lambda tensors: tensors | {"other.weight": torch.ones(2)}, "other.weight"),
        (lambda tensors: tensors | {"joiner.output_linear.bias": torch.ones(2)}, "decoder.embedding.weight"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(change: Change, expected: str, folder: Path) -> None:
    tensors = torch.load(folder / "pretrained.pt", weights_only=True)["model"]
    torch.save({"model": change(tensors)}, folder / "pretrained.pt")
    with refused(InputError, expected):
        read(folder)


def test_an_exported_program_and_a_missing_tokenizer_are_refused(folder: Path) -> None:
    (folder / "bpe.model").rename(folder / "other.model")
    with refused(InputError, "bpe.model ... tokens.txt", cure="--tokenizer"):
        read(folder)
    (folder / "pretrained.pt").rename(folder / "jit_script.pt")
    with refused(InputError, "MODEL ... icefall"):
        read(folder)


def test_a_tokenizer_of_another_size_is_refused(folder: Path) -> None:
    torch.save({"model": checkpoint(30)}, folder / "pretrained.pt")
    with refused(InputError, "bpe.model ... 30"):
        read(folder)


def test_energies_have_one_frame_for_each_shift_of_mirrored_audio() -> None:
    """A plain loop over frames; Kaldi mirrors the ends including the first and the last sample."""
    features = build_features({"features": default_settings("features", "mirrored_fbank")})
    for count in (80, 300, 479, 480, 1999):
        waveform = 0.1 * torch.randn(count, generator=torch.Generator().manual_seed(count))
        frames = features.num_frames(count)
        assert frames == (count + 80) // 160
        rows = []
        for frame in range(frames):
            places = [(160 * frame - 120 + k) % (2 * count) for k in range(400)]
            samples = torch.stack([waveform[min(place, 2 * count - 1 - place)] for place in places]).double()
            samples = samples - samples.mean()
            samples = samples - 0.97 * torch.cat([samples[:1], samples[:-1]])
            window = (0.5 - 0.5 * (2 * torch.pi * torch.arange(400, dtype=torch.float64) / 399).cos()) ** 0.85
            power = torch.fft.rfft(samples * window, n=512).abs() ** 2
            rows.append((power @ features.mel.double()).clamp(min=torch.finfo(torch.float32).eps).log())
        torch.testing.assert_close(features.energies(waveform).double(), torch.stack(rows), rtol=0, atol=1e-3)
    edges = features.mel.any(dim=1).nonzero().flatten() * SAMPLE_RATE / 512
    assert 20 < edges[0] < 60
    assert 7_500 < edges[-1] < 7_600


@torch.no_grad()
def test_energies_of_a_batch_and_of_a_stream_equal_those_of_an_utterance() -> None:
    features = build_features({"features": default_settings("features", "mirrored_fbank")})
    counts = [1999, 8000, 80, 0]
    waveforms = [0.1 * torch.randn(count, generator=torch.Generator().manual_seed(count)) for count in counts]
    padded = torch.nn.utils.rnn.pad_sequence(waveforms, batch_first=True)
    assert features.batched is not None
    batch = features.batched(padded, torch.tensor(counts))
    for row, waveform in zip(batch, waveforms, strict=True):
        energies = features.energies(waveform)
        torch.testing.assert_close(row[: len(energies)], energies, rtol=0, atol=1e-3)
    whole = features(waveforms[1])
    remainder, parts = Remainder(waveforms[1][:0]), []
    pieces = waveforms[1].split(333)
    for number, piece in enumerate(pieces):
        part, remainder = stream_features(features, piece, remainder, at_end=number == len(pieces) - 1)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-4)


@pytest.mark.parametrize("chosen", [[], ["adapter=lora"]], ids=["whole", "lora"])
@pytest.mark.parametrize(
    ("heads", "steps", "causal"),
    [
        pytest.param("ctc", 50, False, marks=pytest.mark.slow),
        ("both", 12, False),
        pytest.param("transducer", 12, True, marks=pytest.mark.slow),
    ],
)
def test_a_converted_model_is_trained_further(
    heads: str, steps: int, causal: bool, chosen: list[str], folder: Path, tones: Path
) -> None:
    """The tones have lower-case texts, so the model gets pieces in lower case; its bundle becomes icefall's again."""
    (folder / "bpe.model").write_bytes(subwords(str.lower))
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(subwords(str.lower))
    before = checkpoint(processor.vocab_size(), HEADS[heads], causal=causal)
    torch.save({"model": before}, folder / "pretrained.pt")
    ours, run_dir, back = read(folder), folder.parent / "run", folder.parent / "back"
    settings = ["experiment=finetune", f"init.from={ours}", f"trainer.max_steps={steps}", "trainer.max_epochs=-1"]
    settings += ["init.frozen=[]", "augment=[]", "optimizer.lr=2e-3", "trainer.log_every_n_steps=1", *chosen]
    settings += [*tone_corpus(tones), "corpus.test=[]", "data.num_workers=0", f"run_dir={run_dir}"]
    train(with_parts(settings_with(*settings), settings))
    all_losses = losses(run_dir)
    assert sum(all_losses[-5:]) < sum(all_losses[:5])
    trained = run_dir / "bundle"
    if chosen:
        merged = run_dir.parent / "merged"
        assert merge([str(trained), "--base", str(ours), "-o", str(merged)]) == 0
        trained = merged
    assert main([str(trained), "--to", "icefall", "-o", str(back)]) == 0
    after = torch.load(back / "pretrained.pt", weights_only=True)["model"]
    assert after.keys() == {name for name in before if not name.startswith("simple_")}
    value = "encoder.encoders.0.layers.0.self_attn1.in_proj.weight"
    assert not torch.equal(after[value], before[value])
