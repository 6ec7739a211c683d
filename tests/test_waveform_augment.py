"""Noise, rooms, gain, codecs and edges: their effect on a waveform depends only on the seed."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from asr.apps.check.augmentations import check_augmentation
from asr.apps.check.settings import Component, settings_of
from asr.base.audio.reverberate import reverberate
from asr.base.settings.read import read
from asr.base.system.seeds import seeded
from asr.components.augment.codec import CODECS, Codec
from asr.components.augment.edges import Edges
from asr.components.augment.noise import Noise
from asr.components.augment.reverberation import Reverberation
from asr.components.augment.simulated_room import SPEED, SimulatedRoom, impulse_response, reflection
from asr.core.build import build_augmentation, build_features
from asr.core.checkpoint.load import model_config
from asr.core.data.batch import Example, Rejected
from asr.core.data.dataset import Augmentation, Item, Reference, SpeechDataset
from asr.core.data.fingerprint import fingerprint
from asr.core.data.manifest import Utterance
from asr.core.data.position import start_of_epoch
from asr.core.data.recordings import RecordingList
from asr.core.data.settings import DataSettings
from asr.core.data.training_set import TrainingSet
from asr.core.run.resume import changes, run_settings
from asr.errors import InputError
from tests.conftest import CONF, TINY, resolved, settings_with, tone_corpus
from tests.refusals import check_refusal, refused

SAMPLE_RATE = 16000
NAMES = sorted(file.stem for file in (CONF / "augment").glob("*.yaml"))


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two recordings: five seconds, and a quarter of a second."""
    folder = tmp_path_factory.mktemp("sounds")
    (folder / "deep").mkdir()
    random = np.random.default_rng(0)
    soundfile.write(folder / "long.wav", random.uniform(-0.5, 0.5, 5 * SAMPLE_RATE), SAMPLE_RATE, "FLOAT")
    soundfile.write(folder / "deep" / "short.flac", random.uniform(-0.1, 0.1, SAMPLE_RATE // 4), SAMPLE_RATE)
    return folder


def speech(num_samples: int = 2 * SAMPLE_RATE, seed: int = 0) -> Tensor:
    """Return noise whose loudness varies."""
    generator = torch.Generator().manual_seed(seed)
    loudness = torch.sin(torch.arange(num_samples) / 4000).square()
    return 0.1 * loudness * torch.randn(num_samples, generator=generator)


def recordings(path: Path) -> RecordingList:
    return RecordingList(path, "augment.noise.recordings")


def noise(path: Path, snr_db: float = 10.0, max_recordings: int = 1) -> Noise:
    return Noise(
        SAMPLE_RATE,
        recordings=recordings(path),
        probability=1.0,
        snr_db=[snr_db, snr_db],
        max_recordings=max_recordings,
    )


def power(waveform: Tensor) -> float:
    return float(waveform.double().square().mean())


# ---- properties of all augmentations


def configured(name: str, sounds: Path, probability: float) -> Any:
    """Make the augmentation of conf/augment/<name>.yaml; any recordings that it needs are those in `sounds`."""
    config = resolved(f"augment=[{name}]")
    for key, value in (("recordings", str(sounds)), ("probability", probability)):
        if key in config["augment"][name]:
            config["augment"][name][key] = value
    [augment] = build_augmentation(config, SAMPLE_RATE).waveform
    return augment


WAVEFORM = [name for name in NAMES if name not in ("speed_perturb", "spec_augment")]


@pytest.mark.parametrize("name", NAMES)
def test_an_augmentation_depends_only_on_its_seed_and_declares_the_length_of_its_output(name: str) -> None:
    settings = settings_of(Component("augment", name))
    check_augmentation(settings | ({"probability": 1.0} if "probability" in settings else {}))


@pytest.mark.parametrize("name", WAVEFORM)
def test_the_probability_is_the_fraction_of_waveforms_that_change(name: str, sounds: Path) -> None:
    waveform = speech(4000)
    never, sometimes = configured(name, sounds, 0.0), configured(name, sounds, 0.5)
    assert all(never(waveform) is waveform for _ in range(20))
    changed = sum(sometimes(waveform) is not waveform for _ in range(60))
    assert 12 < changed < 48  # the mean 30, plus or minus 4.6 standard deviations of 3.9


# ---- noise


@settings(deadline=None, max_examples=40)
@given(snr_db=st.floats(-20, 40), max_recordings=st.integers(1, 5), seed=st.integers(0, 1000))
def test_noise_over_the_whole_utterance_has_the_requested_ratio(
    snr_db: float, max_recordings: int, seed: int, sounds: Path
) -> None:
    waveform = speech()
    with seeded(seed):
        added = noise(sounds, snr_db, max_recordings)(waveform).double() - waveform.double()
    assert 10 * math.log10(power(waveform) / power(added)) == pytest.approx(snr_db, abs=1e-3)


def test_the_ratio_is_drawn_between_the_two_limits(sounds: Path) -> None:
    waveform, ratios = speech(8000), []
    augment = Noise(SAMPLE_RATE, recordings=recordings(sounds), probability=1.0, snr_db=[0, 20], max_recordings=1)
    for _ in range(100):
        ratios.append(10 * math.log10(power(waveform) / power(augment(waveform) - waveform)))
    assert 0 <= min(ratios) < 2 < 18 < max(ratios) <= 20


def test_the_added_noise_is_a_segment_of_a_recording(sounds: Path) -> None:
    recorded, waveform = torch.from_numpy(soundfile.read(sounds / "long.wav", dtype="float32")[0]), speech()
    starts = set()
    for _ in range(5):
        added = noise(sounds / "long.wav")(waveform) - waveform
        size = len(recorded) + len(added)
        matches = torch.fft.irfft(torch.fft.rfft(recorded, size) * torch.fft.rfft(added, size).conj(), size)
        start = int(matches[: len(recorded) - len(added) + 1].argmax())
        segment = recorded[start : start + len(added)]
        assert torch.allclose(added / added.norm(), segment / segment.norm(), atol=1e-6)
        starts.add(start)
    assert len(starts) == 5


def test_a_recording_that_is_too_short_is_repeated(sounds: Path) -> None:
    waveform = speech()
    added = noise(sounds / "deep" / "short.flac")(waveform) - waveform
    length = SAMPLE_RATE // 4
    assert torch.allclose(added[length:], added[:-length], atol=1e-6)


def test_several_recordings_added_together_are_equally_loud(tmp_path: Path) -> None:
    times = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    for number, (frequency, loudness) in enumerate([(500, 0.5), (1000, 0.01), (2000, 0.1)]):
        tone = loudness * np.sin(2 * np.pi * frequency * times)
        soundfile.write(tmp_path / f"{number}.wav", tone, SAMPLE_RATE, "FLOAT")
    waveform = speech(SAMPLE_RATE)
    mixtures = set()
    for _ in range(40):
        added = noise(tmp_path, 0.0, 3)(waveform) - waveform
        amplitudes = torch.fft.rfft(added).abs()[[500, 1000, 2000]]
        shares = (amplitudes / amplitudes.max()).square()
        mixtures.add(tuple(round(float(share), 2) for share in shares))
    assert (0.0, 0.0, 1.0) in mixtures
    assert (1.0, 1.0, 1.0) in mixtures or (0.0, 1.0, 1.0) in mixtures


def test_recordings_are_the_files_of_a_folder_or_the_lines_of_a_manifest_without_texts(sounds: Path) -> None:
    assert [utterance.id for utterance in recordings(sounds).utterances] == ["deep/short.flac", "long.wav"]
    lines = [{"audio_filepath": "long.wav", "duration": 1.0, "offset": 2.0, "id": "part"}]
    manifest = sounds / "list.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    listed = recordings(manifest)
    recorded = torch.from_numpy(soundfile.read(sounds / "long.wav", dtype="float32")[0])
    assert torch.equal(listed.whole(0, SAMPLE_RATE), recorded[2 * SAMPLE_RATE : 3 * SAMPLE_RATE])
    half = listed.segment(0, SAMPLE_RATE, SAMPLE_RATE // 2, 0.5)
    assert torch.equal(half, recorded[int(2.25 * SAMPLE_RATE) : int(2.75 * SAMPLE_RATE)])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("none", "augment.noise.recordings ... no such file"),
        ("empty", "augment.noise.recordings ... empty ... .flac"),
        ("bad.jsonl", "bad.jsonl:1 ... missing duration"),
        ("broken", "augment.noise.recordings ... broken/a.wav ... libsndfile"),
    ],
)
def test_unusable_recordings_are_reported_in_one_line_that_names_the_setting(
    name: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.jsonl").write_text('{"audio_filepath": "a.wav"}\n')
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.wav").write_bytes(b"nothing")
    with refused(InputError, message):
        len(recordings(tmp_path / name))


# ---- rooms


def test_reverberation_is_convolution_with_an_impulse_response_whose_direct_sound_is_at_time_0() -> None:
    waveform, response, direct = speech(700), torch.randn(90), 13
    plain = torch.zeros(700, dtype=torch.float64)
    for at in range(700):
        for delay in range(90):
            if 0 <= at + direct - delay < 700:
                plain[at] += float(response[delay]) * float(waveform[at + direct - delay])
    plain *= math.sqrt(power(waveform) / power(plain))
    assert torch.allclose(reverberate(waveform, response, direct).double(), plain, atol=1e-6)


def test_a_recorded_response_changes_neither_the_delay_nor_the_loudness(tmp_path: Path) -> None:
    late = np.zeros(3000)
    late[700] = 0.25
    soundfile.write(tmp_path / "late.wav", late, SAMPLE_RATE, "FLOAT")
    augment = Reverberation(SAMPLE_RATE, recordings=recordings(tmp_path), probability=1.0)
    assert torch.allclose(augment(speech()), speech(), atol=1e-6)
    late[1000] = 0.2
    soundfile.write(tmp_path / "late.wav", late, SAMPLE_RATE, "FLOAT")
    out = Reverberation(SAMPLE_RATE, recordings=recordings(tmp_path), probability=1.0)(speech())
    assert power(out) == pytest.approx(power(speech()), rel=1e-4)
    echo = speech().clone()
    echo[300:] += 0.8 * speech()[:-300]
    assert torch.allclose(out / out.norm(), echo / echo.norm(), atol=1e-6)


def images(size: list[float], source: list[float], walls: int) -> dict[tuple[float, ...], int]:
    """Mirror a source repeatedly in six walls: return each position, and the number of reflections."""
    there = {tuple(source): 0}
    newest = [tuple(source)]
    for number in range(1, walls + 1):
        mirrored = []
        for place, axis, far in itertools.product(newest, range(3), (False, True)):
            image = list(place)
            image[axis] = round((2 * size[axis] if far else 0.0) - image[axis], 9)
            if tuple(image) not in there:
                there[tuple(image)] = number
                mirrored.append(tuple(image))
        newest = mirrored
    return there


def test_the_image_method_sums_the_mirror_images_of_the_source() -> None:
    size, source, microphone, wall, seconds = [2.0, 3.0, 2.5], [0.7, 1.1, 0.9], [1.4, 2.2, 1.3], 0.7, 0.03
    response = impulse_response(size, source, microphone, wall, SAMPLE_RATE, seconds)
    plain = torch.zeros(len(response), dtype=torch.float64)
    # In 0.03 s sound travels 10 m, which is at most 5 rooms along each axis.
    for place, walls in images(size, source, 13).items():
        distance = math.dist(place, microphone)
        if distance <= seconds * SPEED:
            plain[round(distance / SPEED * SAMPLE_RATE)] += (-wall) ** walls / distance
    assert torch.allclose(response, plain, atol=1e-12)
    assert int(response.nonzero()[0, 0]) == round(math.dist(source, microphone) / SPEED * SAMPLE_RATE)


@pytest.mark.parametrize("rt60", [0.2, 0.4])
def test_a_room_has_the_requested_reverberation_time(rt60: float) -> None:
    """The time is measured by Schroeder's integral from -5 to -25 dB, times 3; Eyring's formula is approximate."""
    size = [6.0, 5.0, 3.0]
    response = impulse_response(size, [1.5, 1.2, 1.4], [4.1, 3.3, 1.6], reflection(size, rt60), SAMPLE_RATE, rt60)
    left = 10 * (response.square().flip(0).cumsum(0).flip(0) / response.square().sum()).log10()
    first, last = int((left > -5).sum()), int((left > -25).sum())
    assert 0.8 * rt60 < 3 * (last - first) / SAMPLE_RATE < 1.6 * rt60


def test_in_a_simulated_room_the_direct_sound_comes_first_and_is_not_delayed() -> None:
    click = torch.zeros(8000)
    click[1000] = 1.0
    augment = SimulatedRoom(
        SAMPLE_RATE, probability=1.0, width_metres=[3, 10], height_metres=[2.4, 4], rt60_seconds=[0.1, 0.6]
    )
    for seed in range(10):
        with seeded(seed):
            out = augment(click)
        assert float(out[:1000].abs().max()) < 1e-4 < float(out[1000])
        assert float(out[1001:].abs().max()) > 1e-2


# ---- codecs


def codec(*names: str, sample_rate: int = SAMPLE_RATE, compression: float = 0.3) -> Codec:
    return Codec(sample_rate, probability=1.0, codecs=list(names), compression=[compression, compression])


def test_mu_law_equals_that_of_g_711() -> None:
    """For exponent e, |x| + 33 (14 bits) is in [2**(e + 5), 2**(e + 6)); four bits after the leading 1 are stored."""
    samples = torch.arange(-32634, 32636, 4)  # no value is on the boundary of two levels
    size = samples.abs() // 4 + 33
    exponent = size.double().log2().floor() - 5
    mantissa = (size / 2 ** (exponent + 1)).floor()
    levels = samples.sign() * ((2 * mantissa + 1) * 2**exponent - 33) * 4
    assert len(levels.unique()) == 255
    out = codec("mu_law", sample_rate=8000)(samples / 32768) * 32768
    assert torch.equal(out.double(), levels)


def test_the_telephone_transmits_nothing_above_4_khz() -> None:
    times = torch.arange(SAMPLE_RATE) / SAMPLE_RATE
    for frequency, passes in ((300, True), (1000, True), (3000, True), (4400, False), (6000, False)):
        tone = 0.5 * torch.sin(2 * math.pi * frequency * times)
        for name in ("narrow_band", "mu_law"):
            ratio = power(codec(name)(tone)[2000:-2000]) / power(tone[2000:-2000])
            assert ratio == pytest.approx(1.0, abs=0.03) if passes else ratio < 1e-4


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_adds_no_delay_and_preserves_speech(name: str) -> None:
    low = torch.fft.rfft(speech())
    low[len(low) // 3 :] = 0  # keeps the lowest third of 8 kHz, which all codecs transmit
    waveform = torch.fft.irfft(low, len(speech()))
    out = codec(name)(waveform)
    size = 2 * len(waveform)
    matches = torch.fft.irfft(torch.fft.rfft(out, size) * torch.fft.rfft(waveform, size).conj(), size)
    assert int(matches.argmax()) == 0
    assert float(torch.corrcoef(torch.stack([waveform, out]))[0, 1]) > (0.7 if name == "gsm" else 0.95)
    assert not torch.equal(waveform, out)


# ---- gain and edges


def test_gain_is_a_factor_between_the_two_limits(sounds: Path) -> None:
    augment = configured("gain", sounds, 1.0)
    ratios = []
    for _ in range(100):
        out = augment(speech(1000))
        factor = float(out[100] / speech(1000)[100])
        assert torch.allclose(out, factor * speech(1000))
        ratios.append(20 * math.log10(factor))
    assert -20 <= min(ratios) < -17 < 2 < max(ratios) <= 5


def edges(noise_probability: float) -> Edges:
    return Edges(
        SAMPLE_RATE, probability=1.0, max_seconds=0.5, noise_probability=noise_probability, noise_db=[-60, -40]
    )


def test_edges_surround_the_unchanged_utterance_with_silence() -> None:
    waveform, added = speech(4000) + 1.0, []
    for _ in range(50):
        out = edges(0.0)(waveform)
        [before, *_, last] = out.nonzero()[:, 0].tolist()
        assert torch.equal(out[before : last + 1], waveform)
        assert not out[:before].any()
        assert not out[last + 1 :].any()
        added += [before, len(out) - last - 1]
    assert 0 <= min(added) < 800 < 7200 < max(added) <= 8000


def test_noise_at_the_edges_has_the_requested_level() -> None:
    waveform, levels = torch.ones(4), []
    for _ in range(50):
        out = edges(1.0)(waveform)
        begin = int((out == 1.0).nonzero()[0, 0])
        if begin > 1000:
            levels.append(10 * math.log10(power(out[:begin])))
    assert -60.5 < min(levels) < -56 < -44 < max(levels) < -39.5


def features_and_reference() -> tuple[Any, Reference]:
    features = build_features(resolved("features/normalize=utterance_cmvn"))
    return features, Reference(lambda text: [1] * len(text), len, lambda frames: frames // 4)


def test_the_batch_plan_reserves_the_seconds_that_edges_add(tmp_path: Path) -> None:
    features, reference = features_and_reference()
    config = resolved("augment=[speed_perturb,edges]", "data.batch_seconds=12", "augment.edges.probability=1.0")
    augmentation = build_augmentation(config, SAMPLE_RATE)
    assert augmentation.max_added_seconds == 2.0
    utterances = [
        Utterance(str(tmp_path / f"{number}.wav"), 1.0 + number % 10, "a", str(number)) for number in range(40)
    ]
    for utterance in utterances:
        soundfile.write(utterance.audio_filepath, np.zeros(round(utterance.duration * SAMPLE_RATE)), SAMPLE_RATE)
    plan_settings = read(DataSettings, config["data"], "data").plan
    added = augmentation.max_added_seconds
    training_set = TrainingSet(utterances, features, reference, augmentation.speed, 0, plan_settings, added)
    dataset = SpeechDataset(training_set.utterances, features, reference, augmentation, 0)
    plan = training_set.epoch(start_of_epoch(0, 1))
    assert len(training_set) == 40, "10 s and 2 s are within 12"
    longest = 0
    for step in range(len(plan)):
        items = plan.items(step, 0)
        examples = [dataset[item] for item in items]
        frames = [len(example.features) for example in examples if isinstance(example, Example)]
        assert len(frames) == len(items)
        assert all(count <= training_set.num_frames(item) for count, item in zip(frames, items, strict=True))
        assert max(frames) * len(frames) <= features.num_frames(12 * SAMPLE_RATE) + len(frames) * 3
        longest = max(longest, *frames)
    assert longest > features.num_frames(10 * SAMPLE_RATE)
    with refused(InputError, "augment.edges ... data.batch_seconds"):
        TrainingSet(utterances, features, reference, None, 0, read(DataSettings, config["data"], "data").plan, 12.0)


# ---- in training


def test_an_utterance_is_rejected_if_its_noise_became_unreadable_and_the_recording_is_named(
    tmp_path: Path, sounds: Path
) -> None:
    features, reference = features_and_reference()
    path = tmp_path / "noise" / "a.wav"
    path.parent.mkdir()
    soundfile.write(path, np.ones(800), SAMPLE_RATE)
    augment = noise(path.parent)
    assert len(augment.recordings) == 1
    path.unlink()
    utterance = Utterance(str(sounds / "long.wav"), 5.0, "a", "x")
    rejected = SpeechDataset([utterance], features, reference, Augmentation(waveform=[augment]))[Item(0, 0, 1.0)]
    assert isinstance(rejected, Rejected)
    check_refusal(rejected.reason, f"{path} ... no such file")


def test_recordings_are_compared_by_content_and_not_by_path(sounds: Path, tmp_path: Path) -> None:
    import shutil

    def settings_of(folder: Path) -> dict[str, Any]:
        config = resolved("augment=[noise]", f"augment.noise.recordings={folder}")
        augmentation = build_augmentation(config, SAMPLE_RATE)
        mixed_in = {name: fingerprint(each.utterances) for name, each in augmentation.recordings.items()}
        return run_settings(config, mixed_in, {}, 1)

    old = settings_of(sounds)
    shutil.copytree(sounds, tmp_path / "moved")
    assert changes(old, settings_of(tmp_path / "moved")) == {}
    (tmp_path / "moved" / "long.wav").unlink()
    changed = changes(old, settings_of(tmp_path / "moved"))
    assert list(changed) == ["manifests.augment.noise.recordings"]
    assert "recordings: '" in changed["manifests.augment.noise.recordings"]


def noisy_run(corpus: Path) -> list[str]:
    names = "augment=[speed_perturb,edges,noise,simulated_room,gain,codec]"
    tiny = [override for override in TINY if not override.startswith("augment")]
    return [*tiny, *tone_corpus(corpus), names, "trainer.max_steps=2"]


def test_a_run_whose_recordings_are_absent_does_not_start(tones: Path, tmp_path: Path) -> None:
    from asr.train import train

    missing = ["augment.noise.recordings=nowhere", f"run_dir={tmp_path / 'run'}"]
    with refused(InputError, "augment.noise.recordings ... nowhere"):
        train(settings_with(*noisy_run(tones), *missing))
    assert not list((tmp_path / "run").rglob("*.ckpt"))


@pytest.mark.slow
def test_training_with_noise_leaves_a_bundle_without_the_recordings(tones: Path, sounds: Path, tmp_path: Path) -> None:
    from asr.train import train

    run = noisy_run(tones)
    noisy = f"augment.noise.recordings={sounds}"
    train(settings_with(*run, noisy, f"run_dir={tmp_path / 'run'}"))
    config = json.loads((tmp_path / "run" / "bundle" / "config.json").read_text())
    assert "augment" not in config
    assert str(sounds) not in json.dumps(config)
    assert "augment" not in model_config(resolved(*run))
