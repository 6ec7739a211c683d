"""Features computed for a batch on the device equal those computed for each utterance in data workers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from asr.components.augment.spec_augment import SpecAugment
from asr.components.features.batched.front_end import FrontEnd
from asr.core.build import build_augmentation, build_features
from asr.core.data.batch import Batch, Example, Rejected, collate
from asr.core.data.dataset import Augmentation, Item, SpeechDataset
from asr.core.data.manifest import Utterance, read_manifest
from asr.core.data.waveforms import WaveformFeatures, collate_waveforms, masked, without_features
from asr.errors import InputError
from asr.train import train
from tests.conftest import TINY, resolved, settings_with, tone_corpus
from tests.refusals import refused
from tests.test_dataset import REFERENCE
from tests.test_train import metrics
from tests.tones import SAMPLE_RATE

AUGMENT = "augment=[speed_perturb,gain,edges,spec_augment]"


def batches(utterances: list[Utterance], overrides: list[str], items: list[Item], views: int) -> list[Batch]:
    """Return two batches: the features of one are computed utterance by utterance, those of the other together."""
    config = resolved(AUGMENT, *overrides)
    features, augmentation = build_features(config), build_augmentation(config, SAMPLE_RATE)
    reference = replace(REFERENCE, views=views)
    one_by_one = SpeechDataset(utterances, features, reference, augmentation, seed=3)
    drawn = without_features(augmentation, features.dim)
    at_once = SpeechDataset(utterances, WaveformFeatures(features), reference, drawn, seed=3)  # type: ignore[arg-type]
    waveforms = collate_waveforms([at_once[item] for item in items])
    return [collate([one_by_one[item] for item in items]), waveforms.featurised(FrontEnd(features))]


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize(
    "overrides", [[], ["features=slaney_fbank"], ["features/normalize=loud_frame_cmvn"]], ids="-".join
)
def test_features_computed_alone_and_in_a_batch_are_equal_within_float32_rounding_and_have_equal_masks(
    overrides: list[str], views: int, tones: Path
) -> None:
    utterances = read_manifest(tones / "train.jsonl")[:6]
    items = [Item(2, position, (0.9, 1.0, 1.1)[position % 3]) for position in (4, 0, 5, 2)]
    expected, actual = batches(utterances, overrides, items, views)
    assert actual.utterances == expected.utterances
    for name in ("feature_lengths", "tokens", "token_lengths"):
        assert torch.equal(getattr(actual, name), getattr(expected, name)), name
    assert actual.features.shape == expected.features.shape
    assert actual.features.shape[1] == int(actual.feature_lengths.max())
    masks = 0
    for row, length in enumerate(actual.feature_lengths.tolist()):
        mine, theirs = actual.features[row, :length], expected.features[row, :length]
        assert torch.equal(mine == 0, theirs == 0)
        masks += int((mine == 0).sum())
        # Digital silence, which `edges` adds, only has the energy of rounding errors.
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=5e-3)
    assert masks > 0
    if views == 2:
        halves = actual.features.chunk(2)
        assert not torch.equal(*halves), "views have different masks"


def test_an_utterance_has_equal_masks_in_any_batch_and_different_masks_in_another_epoch(tones: Path) -> None:
    utterances = read_manifest(tones / "train.jsonl")[:6]

    def zeros(items: list[Item]) -> Tensor:
        batch = batches(utterances, [], items, 1)[1]
        return batch.features[-1, : batch.feature_lengths[-1]] == 0

    alone = zeros([Item(0, 1, 1.0)])
    assert torch.equal(zeros([Item(0, 4, 1.0), Item(0, 1, 1.0)]), alone)
    assert not torch.equal(zeros([Item(1, 1, 1.0)]), alone)


def test_masks_are_drawn_in_the_order_in_which_they_are_applied() -> None:
    """The order is: masks over bins, then over frames; the length of each mask, then its start."""
    augment = SpecAugment(num_freq_masks=2, freq_mask_bins=27, num_time_masks=3, time_mask_fraction=0.1)
    for seed, frames in enumerate((200, 57, 9, 0)):
        features = torch.randn(frames, 80)
        torch.manual_seed(seed)
        expected = features.clone()
        for rows, bound in [(expected.T, 27)] * 2 + [(expected, int(frames * 0.1))] * 3:
            if min(bound, len(rows)) > 0:
                length = torch.rand(()) * min(bound, len(rows))
                start = int(torch.rand(()) * (len(rows) - length))
                rows[start : start + int(length)] = 0.0
        torch.manual_seed(seed)
        assert torch.equal(augment(features), expected)
        torch.manual_seed(seed)
        assert torch.equal(masked(features[None], augment.draw(frames, 80)[None])[0], expected)


def test_unreadable_utterances_are_returned_separately_and_a_batch_of_them_alone_is_empty(tones: Path) -> None:
    [utterance] = read_manifest(tones / "train.jsonl")[:1]
    features = build_features(resolved())
    front_end, rejected = FrontEnd(features), Rejected(utterance, "no audio")
    batch = collate_waveforms([rejected]).featurised(front_end)
    assert (len(batch), batch.rejected) == (0, (rejected,))
    good = SpeechDataset([utterance], WaveformFeatures(features), REFERENCE)[Item(0, 0, 1.0)]  # type: ignore[arg-type]
    assert isinstance(good, Example)
    batch = collate_waveforms([rejected, good]).featurised(front_end)
    assert (len(batch), batch.rejected) == (1, (rejected,))
    assert batch.features.shape[:2] == (1, int(batch.feature_lengths[0]))
    assert batch.num_frames == tuple(batch.feature_lengths.tolist())


def test_all_tensors_of_a_batch_move_and_are_page_locked(tones: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    utterances, features = read_manifest(tones / "train.jsonl")[:2], build_features(resolved())
    dataset = SpeechDataset(utterances, WaveformFeatures(features), REFERENCE)  # type: ignore[arg-type]
    batch = collate_waveforms([dataset[Item(0, position, 1.0)] for position in range(2)])
    batch = replace(batch, rest=replace(batch.rest, conditions={"language": torch.tensor([2, 1])}))
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor.to("meta"))  # page-locking needs a GPU
    for changed in (batch.to("meta"), batch.pin_memory()):
        tensors = [changed.waveforms, changed.sample_counts, changed.masks]
        tensors += [changed.rest.tokens, changed.rest.token_lengths, changed.rest.conditions["language"]]
        assert all(tensor.device.type == "meta" for tensor in tensors)
        assert changed.rest.utterances == tuple(utterances)


def test_an_augmentation_of_features_that_is_not_a_mask_is_refused_by_name() -> None:
    class Blur:
        stage = "features"
        masks = None

        def __call__(self, features: Tensor) -> Tensor:
            return features

    with refused(InputError, "data.features_on; got Blur"):
        without_features(Augmentation(features=[Blur()]), 80)


def test_features_computed_on_the_device_give_nearly_the_same_training_losses(tones: Path, tmp_path: Path) -> None:
    runs = []
    for where in ("cpu", "device"):
        run_dir = tmp_path / where
        few = ["trainer.max_steps=6", "corpus.test=[]", f"data.features_on={where}"]
        tiny = [override for override in TINY if not override.startswith("augment")]
        train(settings_with(*tiny, *tone_corpus(tones), AUGMENT, *few, f"run_dir={run_dir}"))
        runs.append([float(row["train/loss"]) for row in metrics(run_dir)])
    assert runs[1] == pytest.approx(runs[0], rel=2e-3)
    assert runs[1] != runs[0], "the features were computed in another way"
