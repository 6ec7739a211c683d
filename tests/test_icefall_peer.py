"""Zipformers have the outputs and texts of icefall's own network and searches with the same weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from asr.apps.zoo.icefall import theirs as theirs_name
from asr.convert import main
from asr.core.build import component
from asr.core.checkpoint.load import load_recognizer
from tests.conftest import overridden, resolved
from tests.icefall import Modules, encoded, encoded_in_chunks, encoder_of, icefall, needs_icefall, randomize
from tests.test_conformer_streaming import stream
from tests.test_icefall import subwords
from tests.test_parakeet import sound

pytestmark = [pytest.mark.slow, needs_icefall]

NUM_MEL_BINS = 80
FRAMES = (9, 10, 20, 21, 22, 23, 24, 25, 37, 100, 333, 999, 2000)
DIFFERENT_STACKS = {"dims": [16, 24, 32, 20], "layers": [1, 2, 1, 1], "strides": [2, 1, 8, 3], "heads": [4, 4, 8, 4]}
DIFFERENT_STACKS |= {"feed_forward_dims": [32, 40, 48, 32], "kernel_sizes": [31, 7, 3, 15]}
CASES = {f"zipformer_{size}": {} for size in ("xs", "s", "m", "l")} | {"zipformer_xs, other stacks": DIFFERENT_STACKS}


# Two kinds of kernels: of fewer and of more frames than a chunk of 0.16 s.
STREAMING_STACKS = {"layers": [1, 2, 1, 1], "strides": [2, 1, 8, 4], "heads": [4, 4, 8, 4], "chunk_frames": 4}
STREAMING_STACKS |= {"feed_forward_dims": [32, 40, 48, 32], "kernel_sizes": [31, 7, 3, 15], "left_frames": 32}


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    with icefall() as made:
        yield made


def with_the_same_weights(settings: Any, modules: Modules) -> tuple[Any, Any]:
    """Make our encoder and icefall's, in float64."""
    encoder: Any = component("encoder", settings)(NUM_MEL_BINS).double().eval()
    theirs = encoder_of(modules, settings, NUM_MEL_BINS).double().eval()
    randomize(theirs)
    theirs_of = {ours: theirs_name(f"encoder.{ours}", settings["strides"]) for ours in encoder.state_dict()}
    weights = theirs.state_dict()
    unused = {name for name, _ in theirs.named_parameters()} - {*theirs_of.values()}
    assert all(name.endswith("bypass_scale") for name in unused), "icefall's comment says so of these"
    shapes = {ours: tensor.shape for ours, tensor in encoder.state_dict().items()}
    encoder.load_state_dict({ours: weights[name].reshape(shapes[ours]) for ours, name in theirs_of.items()})
    return encoder, theirs


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_an_utterance_has_icefalls_output(case: str, modules: Modules) -> None:
    config = resolved(f"encoder={case.partition(',')[0]}", "head=ctc")["encoder"]
    encoder, theirs = with_the_same_weights(overridden(config, CASES[case]), modules)
    generator = torch.Generator().manual_seed(1)
    for frames in FRAMES:
        features = 3 * torch.randn(frames, NUM_MEL_BINS, generator=generator, dtype=torch.float64)
        actual = encoder(features[None], torch.tensor([frames]))
        expected = encoded(theirs, features)
        assert int(actual.lengths[0]) == encoder.output_lengths(frames) == len(expected)
        torch.testing.assert_close(actual.out[0], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        *((f"zipformer_streaming_{size}", {}) for size in ("xs", "s")),
        *(("zipformer_streaming_xs", {"chunk_frames": chunk}) for chunk in (4, 16, None)),
        ("zipformer_streaming_xs", {"dims": [16, 24, 32, 20]} | STREAMING_STACKS),
    ],
    ids=str,
)
@torch.no_grad()
def test_a_streaming_zipformer_has_icefalls_output_for_an_utterance_and_for_its_chunks(
    case: str, changes: dict[str, Any], modules: Modules
) -> None:
    settings = overridden(resolved(f"encoder={case}", "head=ctc")["encoder"], changes)
    encoder, theirs = with_the_same_weights(settings, modules)
    generator = torch.Generator().manual_seed(1)
    for frames in FRAMES:
        features = 3 * torch.randn(frames, NUM_MEL_BINS, generator=generator, dtype=torch.float64)
        expected = encoded(theirs, features)
        actual = encoder(features[None], torch.tensor([frames])).out[0]
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)
        if frames > 500 and encoder.chunk_frames:
            in_chunks = encoded_in_chunks(theirs, features, 2 * encoder.chunk_frames)
            ours, _, _ = stream(encoder, features, encoder.chunk_frames)
            assert len(in_chunks) >= len(ours) - encoder.chunk_frames
            torch.testing.assert_close(ours[: len(in_chunks)], in_chunks, rtol=0, atol=1e-6)


class TheirModel(torch.nn.Module):
    """The parts of icefall's model that a checkpoint has: a CTC head, and a transducer if `context` is not 0."""

    def __init__(self, modules: Modules, settings: Any, vocab_size: int, context: int = 0) -> None:
        super().__init__()
        theirs: Any = encoder_of(modules, settings, NUM_MEL_BINS)
        self.encoder_embed, self.encoder = theirs.encoder_embed, theirs.encoder
        dim = max(settings["dims"])
        linear = torch.nn.Linear(dim, vocab_size)
        self.ctc_output = torch.nn.Sequential(torch.nn.Dropout(0.1), linear, torch.nn.LogSoftmax(dim=-1))
        if context:
            self.decoder = modules.predictor(vocab_size, 24, blank_id=0, context_size=context)
            self.joiner = modules.joiner(dim, 24, 20, vocab_size)


def saved(modules: Modules, folder: Path, context: int = 0) -> tuple[Any, Any]:
    """Save a checkpoint of icefall with random weights and its tokenizer; return the network and the tokenizer."""
    folder.mkdir()
    model = subwords()
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    theirs: Any = TheirModel(modules, SETTINGS, processor.vocab_size(), context).eval()
    randomize(theirs)
    with torch.no_grad():
        theirs.ctc_output[1].weight.mul_(5.0)  # so that frames have different tokens
        if context:
            theirs.joiner.encoder_proj.weight.mul_(9.0)
            theirs.joiner.decoder_proj.weight.mul_(3.0)
            theirs.joiner.output_linear.weight.mul_(3.0)
            theirs.joiner.output_linear.bias[1:3] -= 100.0  # no pieces without text
    (folder / "bpe.model").write_bytes(model)
    torch.save({"model": theirs.state_dict()}, folder / "pretrained.pt")
    return theirs, processor


SETTINGS = overridden(resolved("encoder=zipformer_xs")["encoder"], DIFFERENT_STACKS)


@torch.no_grad()
def test_a_checkpoint_is_read_and_icefalls_network_loads_the_one_written_back(modules: Modules, tmp_path: Path) -> None:
    folder, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    theirs, processor = saved(modules, folder)
    assert main([str(folder), "-o", str(ours)]) == 0
    recognizer = load_recognizer(ours)
    texts = set()
    for seed in range(4):
        waveform = sound(1.5, seed=seed)
        features = recognizer.model.features(waveform)
        log_probs = theirs.ctc_output(encoded(theirs, features))
        own = recognizer.model(features[None], torch.tensor([len(features)]))
        torch.testing.assert_close(own.out[0], encoded(theirs, features), rtol=0, atol=1e-3)
        best = log_probs.argmax(dim=-1).tolist()
        tokens = [token for token, before in zip(best, [0, *best], strict=False) if token not in (before, 0)]
        text = processor.decode([token for token in tokens if token > 2]).strip()
        assert recognizer.transcribe([waveform], sample_rate=16_000)[0].text == text
        texts.add(text)
    assert len(texts) > 1
    assert main([str(ours), "--to", "icefall", "-o", str(back)]) == 0
    written = torch.load(back / "pretrained.pt", weights_only=True)["model"]
    TheirModel(modules, SETTINGS, processor.vocab_size()).load_state_dict(written, strict=True)
    assert {name for name, _ in theirs.named_parameters()} == written.keys()
    unused = {name for name in written if ".layers." in name and name.split(".")[-2].isdigit()}
    state = theirs.state_dict()
    assert all(torch.equal(written[name], state[name]) for name in written.keys() - unused)


@pytest.mark.parametrize("context", [1, 2])  # with 3, icefall's greedy search pads the first tokens by blanks
@torch.no_grad()
def test_a_transducer_writes_the_texts_of_icefalls_searches_and_is_loaded_by_icefall(
    context: int, modules: Modules, tmp_path: Path
) -> None:
    folder, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    theirs, processor = saved(modules, folder, context)
    assert main([str(folder), "-o", str(ours)]) == 0
    beam = {"name": "monotonic_beam", "num_start_tokens": context}
    greedy, wide = load_recognizer(ours), load_recognizer(ours, decode=beam)
    both = set()
    for seed in range(12):
        waveform = sound(1.5, seed=seed)
        encoder_out = encoded(theirs, greedy.model.features(waveform))[None]
        lengths = torch.tensor([encoder_out.shape[1]])
        tokens = modules.greedy_search(theirs, encoder_out, max_sym_per_frame=1)
        [best] = modules.beam_search(theirs, encoder_out, lengths, beam=4)
        texts = tuple(" ".join(processor.decode(each).split()) for each in (tokens, best))
        assert greedy.transcribe([waveform], sample_rate=16_000)[0].text == texts[0]
        assert wide.transcribe([waveform], sample_rate=16_000)[0].text == texts[1]
        both.add(texts)
    assert len(both) > 3
    assert any(first != second for first, second in both), "the beam search must find other texts"
    assert main([str(ours), "--to", "icefall", "-o", str(back)]) == 0
    written = torch.load(back / "pretrained.pt", weights_only=True)["model"]
    again = TheirModel(modules, SETTINGS, processor.vocab_size(), context).eval()
    again.load_state_dict(written, strict=True)
    torch.testing.assert_close(encoded(again, greedy.model.features(waveform))[None], encoder_out, rtol=0, atol=0)
    assert modules.greedy_search(again, encoder_out, max_sym_per_frame=1) == tokens
