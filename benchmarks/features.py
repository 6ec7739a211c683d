"""python -m benchmarks.features: log-mel features of asr and other toolkits, in one process and in several."""

import argparse
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import torch
from hydra import compose
from omegaconf import OmegaConf
from torch import Tensor

from asr.components.features.fbank import Fbank
from asr.core.build import Config, build_features
from asr.core.cli.command import run_command
from asr.core.training.hydra_command import initialized_hydra
from benchmarks import results
from benchmarks.machine import about, measure
from benchmarks.race import Contender, enter, race
from benchmarks.results import Columns, Results, fixed, share

SAMPLE_RATE, NUM_MEL_BINS, FFT_POINTS = 16000, 80, 512
INT16_SCALE = 2**15  # other toolkits take samples in 16-bit units
OURS, KALDI, BOUND = "asr", "torchaudio, Kaldi's", "FFT and product only"
UTTERANCES = 10  # per turn; all lengths differ, as in a corpus, so that the allocator cannot reuse blocks of equal size
MIN_LENGTH_FACTOR, MAX_LENGTH_FACTOR = 0.7, 1.3  # shortest and longest utterance divided by the mean length

Featurize = Callable[[Tensor], Tensor]  # (S,) to (T, F)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all contenders in one process by utterance length, then two of them in several parallel processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument(
        "--seconds",
        nargs="+",
        type=float,
        default=[2, 10, 30],
        metavar="S",
        help="mean lengths of the utterances, which vary from 0.7 to 1.3 times the mean (default: 2 10 30)",
    )
    cores = len(os.sched_getaffinity(0))
    parser.add_argument(
        "--workers", nargs="*", type=int, default=range(1, cores + 1), metavar="N", help="numbers of parallel processes"
    )
    parser.add_argument(
        "--worker-seconds",
        type=float,
        default=3.0,
        metavar="S",
        help="seconds for which the parallel processes are measured (default: 3)",
    )
    results.add_options(parser)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts = about(options, measure())
    run_in_one_process(options).save(options.output_dir, facts)
    if options.workers:
        run_in_parallel(options).save(options.output_dir, facts)
    return 0


def run_in_one_process(options: argparse.Namespace) -> Results:
    """Print one row per utterance length and contender; the contenders take turns in this process."""
    columns: Columns = {"utterance s": str, "contender": str, "CPU ms": fixed(2), "audio hours/s": fixed(2)}
    columns |= {"x torchaudio": fixed(2), "of bound": share, "max difference": lambda value: f"{value:.0e}"}
    table = Results("features", columns, bars="audio hours/s", group_by=("utterance s",))
    for seconds in options.seconds:
        waveforms = make_waveforms(seconds)
        featurizers = enter(MAKERS)
        contenders: dict[str, Contender] = {
            name: functools.partial(_apply_to_all, featurize, waveforms) for name, featurize in featurizers.items()
        }
        contenders[BOUND] = lower_bound(waveforms)
        turns = race(contenders, turns=options.turns)
        durations = {name: turn.cpu_seconds for name, turn in turns.items()}
        exact = kaldi(waveforms[0].double())
        for name, cpu_seconds in durations.items():
            difference = (
                float((featurizers[name](waveforms[0]) - exact).abs().max()) if name in KALDI_COMPATIBLE else None
            )
            hours = sum(map(len, waveforms)) / SAMPLE_RATE / 3600
            figures = 1000 * cpu_seconds / len(waveforms), hours / cpu_seconds, durations[KALDI] / cpu_seconds
            table.row(f"{seconds:g}", name, *figures, durations[BOUND] / cpu_seconds, difference)
    return table


def run_in_parallel(options: argparse.Namespace) -> Results:
    """Print one row per contender and number of parallel processes of one thread each."""
    columns: Columns = {"contender": str, "workers": str, "audio hours/s": fixed(2), "audio hours/CPU s": fixed(2)}
    table = Results("features_workers", columns, bars="audio hours/s", group_by=("contender",))
    for name in (OURS, KALDI):
        for workers in options.workers:
            spawn = get_context("spawn")
            barrier = spawn.Barrier(workers)
            with ProcessPoolExecutor(workers, spawn, initializer=_initialize_process, initargs=(barrier,)) as pool:
                rates = list(pool.map(_measure_rates, [name] * workers, [options.worker_seconds] * workers))
            by_clock, by_cpu = (sum(column) for column in zip(*rates, strict=True))
            table.row(name, str(workers), by_clock, by_cpu / workers)
    return table


def make_waveforms(seconds: float) -> list[Tensor]:
    """Make waveforms (S,) of noise, with a mean length of `seconds`."""
    generator = torch.Generator().manual_seed(0)
    lengths = seconds * SAMPLE_RATE * torch.linspace(MIN_LENGTH_FACTOR, MAX_LENGTH_FACTOR, UTTERANCES)
    order = torch.randperm(UTTERANCES, generator=generator)
    return [0.1 * torch.randn(int(length), generator=generator) for length in lengths[order]]


def composed(*overrides: str) -> Config:
    """Return the config of conf/train.yaml with overrides."""
    with initialized_hydra():
        config = compose("train", overrides=list(overrides))
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def ours() -> Featurize:
    """Make the features of conf/features/fbank.yaml without normalisation, which the other contenders lack."""
    return build_features(composed()).energies


def slaney() -> Featurize:
    """Make the features of conf/features/slaney_fbank.yaml, which follow NeMo, with the same number of mel bins."""
    return build_features(composed("features=slaney_fbank")).energies


def kaldi(waveform: Tensor) -> Tensor:
    """Compute torchaudio's Kaldi-compatible fbank features."""
    import torchaudio.compliance.kaldi

    return torchaudio.compliance.kaldi.fbank(
        waveform[None] * INT16_SCALE, sample_frequency=SAMPLE_RATE, num_mel_bins=NUM_MEL_BINS
    )


def lhotse() -> Featurize:
    """Make lhotse's Kaldi-compatible features, which are written in torch."""
    from lhotse import Fbank, FbankConfig

    extractor = Fbank(FbankConfig(SAMPLE_RATE, num_filters=NUM_MEL_BINS, snip_edges=True, high_freq=0.0))
    return lambda waveform: extractor.extract(waveform * INT16_SCALE, SAMPLE_RATE)


def speechbrain() -> Featurize:
    """Make SpeechBrain's features, in decibels.

    Unlike Kaldi's, they have a Hamming window, a 400-point FFT, and no pre-emphasis.
    """
    from speechbrain.lobes.features import Fbank

    compute = Fbank(sample_rate=SAMPLE_RATE, n_mels=NUM_MEL_BINS)
    return lambda waveform: compute(waveform[None])[0]


def kaldi_native() -> Featurize:
    """Make features with kaldi-native-fbank, a C++ library that returns frames one by one."""
    import kaldi_native_fbank
    import numpy as np

    options = kaldi_native_fbank.FbankOptions()
    options.mel_opts.num_bins = NUM_MEL_BINS
    options.frame_opts.dither = 0.0

    def featurize(waveform: Tensor) -> Tensor:
        stream = kaldi_native_fbank.OnlineFbank(options)
        stream.accept_waveform(SAMPLE_RATE, (waveform * INT16_SCALE).numpy())
        return torch.from_numpy(np.stack([stream.get_frame(frame) for frame in range(stream.num_frames_ready)]))

    return featurize


MAKERS: dict[str, Callable[[], Featurize]] = {
    OURS: ours,
    "asr, slaney_fbank": slaney,
    KALDI: lambda: kaldi,
    "lhotse": lhotse,
    "SpeechBrain": speechbrain,
    "kaldi-native-fbank": kaldi_native,
}
KALDI_COMPATIBLE = MAKERS.keys() - {"asr, slaney_fbank", "SpeechBrain"}


def lower_bound(waveforms: list[Tensor]) -> Contender:
    """Return a contender that does only the unavoidable work: FFT and product with the mel weights, without framing."""
    fbank = build_features(composed())
    assert isinstance(fbank, Fbank)
    frames = torch.randn(fbank.num_frames(max(map(len, waveforms))), FFT_POINTS)
    weights = torch.rand(FFT_POINTS // 2 + 1, NUM_MEL_BINS)
    spectrum = torch.fft.rfft(frames)
    power = spectrum.real.square()

    def transform(waveform: Tensor) -> None:
        num_frames = fbank.num_frames(len(waveform))
        torch.fft.rfft(frames[:num_frames], out=spectrum[:num_frames])
        power[:num_frames] @ weights

    return functools.partial(_apply_to_all, transform, waveforms)


def _apply_to_all(featurize: Callable[[Tensor], object], waveforms: list[Tensor]) -> None:
    for waveform in waveforms:
        featurize(waveform)


_barrier: Barrier  # the parallel processes wait for each other here before their timed work


def _initialize_process(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier
    torch.set_num_threads(1)


def _measure_rates(name: str, seconds: float) -> tuple[float, float]:
    """Compute features for `seconds` once all processes are ready; return audio hours per second and per CPU second."""
    waveforms, featurize = make_waveforms(10), MAKERS[name]()
    _apply_to_all(featurize, waveforms)
    _barrier.wait()
    start, cpu_start, rounds = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        _apply_to_all(featurize, waveforms)
        rounds += 1
    hours = rounds * sum(map(len, waveforms)) / SAMPLE_RATE / 3600
    return hours / (time.perf_counter() - start), hours / (time.process_time() - cpu_start)


if __name__ == "__main__":
    run_command(main)
