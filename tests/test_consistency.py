"""CR-CTC: its loss equals the paper's formula; the two views of an utterance, and batches of views."""

import logging
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from asr.base.settings.read import read
from asr.core.build import build_augmentation, build_features, component
from asr.core.data.batch import Example, collate
from asr.core.data.dataset import Augmentation, Item, Reference, SpeechDataset
from asr.core.data.manifest import Utterance
from asr.core.data.position import start_of_epoch
from asr.core.data.settings import PlanSettings
from asr.core.data.training_set import TrainingSet
from asr.core.training.data_module import SpeechData
from asr.interfaces import Encoded
from tests.conftest import block_dims, resolved
from tests.targets import targets_of
from tests.test_training_set import FEATURES, REFERENCE, SETTINGS, SPEED, utterances
from tests.tones import SAMPLE_RATE, speak

DIM, VOCAB_SIZE = 6, 5
LENGTHS, TOKENS = (7, 4, 5), ([1, 2, 2], [3], [4, 1])


def head() -> Any:
    made = component("head", resolved("head=ctc_consistency")["head"])(DIM, block_dims(DIM), VOCAB_SIZE).double()
    with torch.no_grad():
        made.ctc.linear.weight *= 5
    return made


def padded_tokens() -> Tensor:
    tokens = torch.full((len(TOKENS), 5), VOCAB_SIZE - 1)
    for row, ids in enumerate(TOKENS):
        tokens[row, : len(ids)] = torch.tensor(ids)
    return tokens


def plain_loss(made: Any, views: Tensor, tokens: list[int]) -> Tensor:
    """Compute equations 2 to 4 of arXiv:2410.05101 for an utterance's two views (2, T', D), frame by frame."""
    linear = made.ctc.linear
    lengths, ids = (len(views[0]),), torch.tensor([tokens])
    log_probs = [linear(view).log_softmax(dim=-1)[:, None] for view in views]
    ctc = sum(F.ctc_loss(each, ids, lengths, (len(tokens),), reduction="sum") for each in log_probs) / 2
    probabilities = [[linear(frame).softmax(dim=-1) for frame in view] for view in views]
    consistency = torch.zeros((), dtype=torch.float64)
    for mine, other in (probabilities, probabilities[::-1]):
        for p, q in zip(mine, other, strict=True):
            target = q.detach()
            consistency = consistency + sum(target[v] * (target[v].log() - p[v].log()) for v in range(VOCAB_SIZE)) / 2
    return ctc + resolved("head=ctc_consistency")["head"]["weight"] * consistency


def test_loss_and_gradients_equal_the_formula_of_the_paper_and_padded_frames_do_not_count() -> None:
    made, count = head(), len(LENGTHS)
    views = torch.full((2, count, 9, DIM), 1e6, dtype=torch.float64)
    for row, length in enumerate(LENGTHS):
        views[:, row, :length] = torch.randn(2, length, DIM, dtype=torch.float64)
    views.requires_grad_()
    lengths, token_lengths = torch.tensor(LENGTHS * 2), torch.tensor([len(ids) for ids in TOKENS])
    losses = made.losses(Encoded(views.flatten(0, 1), lengths, {}), targets_of(padded_tokens(), token_lengths))
    expected = torch.stack(
        [plain_loss(made, views[:, row, :length], TOKENS[row]) for row, length in enumerate(LENGTHS)]
    )
    torch.testing.assert_close(losses["loss"], expected, rtol=0, atol=1e-10)
    assert (losses["consistency"] > 0.01).all()
    inputs = [views, *made.parameters()]
    actual, wanted = (torch.autograd.grad(loss.sum(), inputs, retain_graph=True) for loss in (losses["loss"], expected))
    for gradient, plain in zip(actual, wanted, strict=True):
        torch.testing.assert_close(gradient, plain, rtol=0, atol=1e-10)


def test_with_one_view_or_two_equal_views_the_loss_is_the_ctc_loss() -> None:
    made, token_lengths = head(), torch.tensor([len(ids) for ids in TOKENS])
    encoded = Encoded(torch.randn(3, 7, DIM, dtype=torch.float64), torch.tensor(LENGTHS), {})
    expected = made.ctc.losses(encoded, targets_of(padded_tokens(), token_lengths))["loss"]
    twice = Encoded(encoded.out.repeat(2, 1, 1), encoded.lengths.repeat(2), {})
    for each in (encoded, twice):
        losses = made.losses(each, targets_of(padded_tokens(), token_lengths))
        torch.testing.assert_close(losses["loss"], expected, rtol=0, atol=1e-12)
        assert losses["consistency"].abs().max() < 1e-12


UTTERANCE = Utterance("a.wav", 1.0, "abc", "a")
TWO_VIEWS = Reference(lambda text: [1], len, lambda frames: frames, views=2)


class Noise:
    """A random change of the waveform."""

    stage = "waveform"
    max_added_seconds = 0.0

    def __call__(self, waveform: Tensor) -> Tensor:
        return waveform + 0.01 * torch.randn(waveform.shape)


def dataset(augmentation: Augmentation, reference: Reference = TWO_VIEWS, seed: int = 3) -> SpeechDataset:
    waveform = torch.from_numpy(speak("abc def"))
    features = build_features(resolved())
    return SpeechDataset([UTTERANCE], features, reference, augmentation, seed, lambda utterance, rate: waveform)


def views(made: SpeechDataset, epoch: int = 0) -> tuple[Tensor, ...]:
    example = made[Item(epoch, 0, 0.9)]
    assert isinstance(example, Example)
    return (example.features, *example.other_views)


MASKED = build_augmentation(resolved("augment=[speed_perturb,spec_augment]"), SAMPLE_RATE)
NOISY = Augmentation(MASKED.speed, [Noise()], MASKED.features)


def test_views_share_their_waveform_and_have_different_masks() -> None:
    first, second = views(dataset(Augmentation(NOISY.speed, NOISY.waveform)))
    assert torch.equal(first, second), "both views have equal speed and noise"
    masked, other = views(dataset(NOISY))
    assert torch.equal(masked, views(dataset(NOISY, REFERENCE))[0]), "the first view does not depend on the second"
    for view in (masked, other):
        unmasked = view == first
        assert 0.2 < unmasked.float().mean() < 1
        assert not view[~unmasked].any(), "masked values are 0"
    assert not torch.equal(masked == 0, other == 0)


def test_masks_are_a_function_of_seed_epoch_utterance_and_view() -> None:
    made = dataset(NOISY)
    assert len({view.sum().item() for epoch in range(3) for view in views(made, epoch)}) == 6
    torch.manual_seed(99)
    assert all(map(torch.equal, views(made, 2), views(dataset(NOISY), 2)))
    assert not torch.equal(views(made)[1], views(dataset(NOISY, seed=4))[1])


def test_a_batch_has_the_first_views_of_all_utterances_and_then_the_second() -> None:
    batch = collate(
        [
            Example(UTTERANCE, torch.full((length, 2), 1.0 * number), torch.tensor([number]), (-torch.ones(length, 2),))
            for number, length in enumerate((3, 5), start=1)
        ]
    )
    assert len(batch) == 2
    assert batch.features[:, 2, 0].tolist() == [1, 2, -1, -1]
    assert batch.feature_lengths.tolist() == [3, 5, 3, 5]
    assert batch.tokens.tolist() == [[1], [2]]


def test_evaluation_uses_one_view() -> None:
    assert len(views(dataset(Augmentation(), TWO_VIEWS.for_evaluation()))) == 1


@pytest.mark.parametrize("bound", [{}, {"max_squared_seconds": 300.0}, {"max_utterances": 5}])
def test_a_batch_with_two_views_has_half_as_many_utterances_as_with_one(bound: dict[str, Any]) -> None:
    settings = SETTINGS | bound
    given = utterances(200)
    reference = Reference(REFERENCE.encode, REFERENCE.min_frames, REFERENCE.output_lengths, views=2)
    data = TrainingSet(given, FEATURES, reference, SPEED, 0, read(PlanSettings, settings, "data"))
    plan = data.epoch(start_of_epoch(1, 1))
    assert len(data) == len(given), "no utterance is too long"
    for step in range(len(plan)):
        batch = plan.items(step, 0)
        longest = max(given[item.row].duration / item.factor for item in batch)
        assert 2 * longest * len(batch) <= settings["batch_seconds"] + 1e-9
        assert 2 * len(batch) <= settings["max_utterances"]
        if settings["max_squared_seconds"]:
            assert 2 * longest**2 * len(batch) <= settings["max_squared_seconds"] + 1e-9


@pytest.mark.parametrize(("overrides", "warnings"), [(["augment=[]"], 1), (["augment=[spec_augment]"], 0)])
def test_two_views_without_masks_cause_a_warning(
    overrides: list[str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    training_set = TrainingSet(utterances(8), FEATURES, TWO_VIEWS, None, 0, read(PlanSettings, SETTINGS, "data"))
    augmentation = build_augmentation(resolved(*overrides), SAMPLE_RATE)
    with caplog.at_level(logging.WARNING):
        SpeechData(training_set, [], augmentation, start_of_epoch(0, 1), num_workers=0)
    messages = [record.getMessage() for record in caplog.records]
    assert messages == warnings * [
        "the 2 views of an utterance differ only by dropout, because no augmentation masks features; "
        "add augment=[..., spec_augment]"
    ]
