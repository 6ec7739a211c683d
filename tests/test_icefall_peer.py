"""The Zipformer has the outputs of icefall's own network with the same weights, for one utterance at a time."""

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
from tests.icefall import Modules, encoded, encoder_of, icefall, needs_icefall, randomize
from tests.test_icefall import subwords
from tests.test_parakeet import sound

pytestmark = [pytest.mark.slow, needs_icefall]

NUM_MEL_BINS = 80
FRAMES = (9, 10, 20, 21, 22, 23, 24, 25, 37, 100, 333, 999, 2000)
DIFFERENT_STACKS = {"dims": [16, 24, 32, 20], "layers": [1, 2, 1, 1], "strides": [2, 1, 8, 3], "heads": [4, 4, 8, 4]}
DIFFERENT_STACKS |= {"feed_forward_dims": [32, 40, 48, 32], "kernel_sizes": [31, 7, 3, 15]}
CASES = {f"zipformer_{size}": {} for size in ("xs", "s", "m", "l")} | {"zipformer_xs, other stacks": DIFFERENT_STACKS}


@pytest.fixture(scope="module")
def modules() -> Iterator[Modules]:
    with icefall() as made:
        yield made


@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_an_utterance_has_icefalls_output(case: str, modules: Modules) -> None:
    config = resolved(f"encoder={case.partition(',')[0]}", "head=ctc")["encoder"]
    settings = overridden(config, CASES[case])
    encoder: Any = component("encoder", settings)(NUM_MEL_BINS).double().eval()
    theirs = encoder_of(modules, settings, NUM_MEL_BINS).double().eval()
    randomize(theirs)
    theirs_of = {ours: theirs_name(f"encoder.{ours}", settings["strides"]) for ours in encoder.state_dict()}
    weights = theirs.state_dict()
    unused = {name for name, _ in theirs.named_parameters()} - {*theirs_of.values()}
    assert all(name.endswith("bypass_scale") for name in unused), "icefall's comment says so of these"
    shapes = {ours: tensor.shape for ours, tensor in encoder.state_dict().items()}
    encoder.load_state_dict({ours: weights[name].reshape(shapes[ours]) for ours, name in theirs_of.items()})
    generator = torch.Generator().manual_seed(1)
    for frames in FRAMES:
        features = 3 * torch.randn(frames, NUM_MEL_BINS, generator=generator, dtype=torch.float64)
        actual = encoder(features[None], torch.tensor([frames]))
        expected = encoded(theirs, features)
        assert int(actual.lengths[0]) == encoder.output_lengths(frames) == len(expected)
        torch.testing.assert_close(actual.out[0], expected, rtol=0, atol=1e-6)


class TheirModel(torch.nn.Module):
    """The parts of icefall's model with CTC that a checkpoint has."""

    def __init__(self, modules: Modules, settings: Any, vocab_size: int) -> None:
        super().__init__()
        theirs: Any = encoder_of(modules, settings, NUM_MEL_BINS)
        self.encoder_embed, self.encoder = theirs.encoder_embed, theirs.encoder
        linear = torch.nn.Linear(max(settings["dims"]), vocab_size)
        self.ctc_output = torch.nn.Sequential(torch.nn.Dropout(0.1), linear, torch.nn.LogSoftmax(dim=-1))


@torch.no_grad()
def test_a_checkpoint_is_read_and_icefalls_network_loads_the_one_written_back(modules: Modules, tmp_path: Path) -> None:
    settings = overridden(resolved("encoder=zipformer_xs")["encoder"], DIFFERENT_STACKS)
    model = subwords()
    processor = sentencepiece.SentencePieceProcessor()
    processor.load_from_serialized_proto(model)
    theirs: Any = TheirModel(modules, settings, processor.vocab_size()).eval()
    randomize(theirs)
    theirs.ctc_output[1].weight.mul_(5.0)  # so that frames have different tokens
    folder, ours, back = tmp_path / "theirs", tmp_path / "ours", tmp_path / "back"
    folder.mkdir()
    (folder / "bpe.model").write_bytes(model)
    torch.save({"model": theirs.state_dict()}, folder / "pretrained.pt")
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
    TheirModel(modules, settings, processor.vocab_size()).load_state_dict(written, strict=True)
    state = theirs.state_dict()
    used = {name for name in state if not (".layers." in name and name.split(".")[-2].isdigit())}
    assert all(torch.equal(written[name], state[name]) for name in used & written.keys())
    parameters = {name for name, _ in theirs.named_parameters()}
    assert parameters == written.keys()
