"""python -m benchmarks.features: log-mel features, ours and other toolkits', on one thread, alone and side by side."""

import argparse
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor

from asr.build import Config, build_features
from asr.cli.command import run_command
from asr.features.fbank import INT16_SCALE, Fbank
from asr.settings.conf import CONF
from benchmarks import results
from benchmarks.machine import about, measure
from benchmarks.race import Contender, enter, race
from benchmarks.results import Results, fixed, share

SAMPLE_RATE, NUM_MEL_BINS, FFT_POINTS = 16000, 80, 512
OURS, KALDI, BOUND = "asr", "torchaudio, Kaldi's", "FFT and product alone"
UTTERANCES = 10  # of a turn: no two are equally long, as in a corpus, so that memory is not simply used again
SHORTEST, LONGEST = 0.7, 1.3  # times the seconds that they are named by

Featurize = Callable[[Tensor], Tensor]  # (S,) to (T, F)


def main(arguments: Sequence[str] | None = None) -> int:
    """Time the contenders on utterances of several lengths, then in several processes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.features", description=__doc__)
    parser.add_argument("--seconds", nargs="+", type=float, default=[2, 10, 30], metavar="S", help="of an utterance")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--workers", nargs="*", type=int, default=range(1, cores + 1), metavar="N", help="processes")
    parser.add_argument("--worker-seconds", type=float, default=3.0, metavar="S", help="that they work for")
    results.add_options(parser)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    facts = about(given, measure())
    alone(given).keep(given.output_dir, facts)
    if given.workers:
        together(given).keep(given.output_dir, facts)
    return 0


def alone(given: argparse.Namespace) -> Results:
    """Print a row for each length and contender: the contenders take turns in this process."""
    columns = {"utterance s": str, "contender": str, "CPU ms": fixed(2), "audio hours/s": fixed(2)}
    columns |= {"x torchaudio": fixed(2), "of bound": share, "off by": lambda value: f"{value:.0e}"}
    table = Results("features", columns, bars="audio hours/s", within=("utterance s",))
    for seconds in given.seconds:
        waveforms = make_waveforms(seconds)
        featurizers = enter(MAKERS)
        contenders = {name: functools.partial(_each, featurize, waveforms) for name, featurize in featurizers.items()}
        contenders[BOUND] = library_work(waveforms)
        turns = race(contenders, turns=given.turns)
        taken = {name: turn.cpu_seconds for name, turn in turns.items()}
        exact = kaldi(waveforms[0].double())
        for name, cpu_seconds in taken.items():
            off = float((featurizers[name](waveforms[0]) - exact).abs().max()) if name in KALDIS else None
            hours = sum(map(len, waveforms)) / SAMPLE_RATE / 3600
            figures = 1000 * cpu_seconds / len(waveforms), hours / cpu_seconds, taken[KALDI] / cpu_seconds
            table.row(f"{seconds:g}", name, *figures, taken[BOUND] / cpu_seconds, off)
    return table


def together(given: argparse.Namespace) -> Results:
    """Print a row for each number of processes that work at the same time, each on one thread."""
    columns = {"contender": str, "workers": str, "audio hours/s": fixed(2), "a CPU second": fixed(2)}
    table = Results("features_workers", columns, bars="audio hours/s", within=("contender",))
    for name in (OURS, KALDI):
        for workers in given.workers:
            spawn = get_context("spawn")
            barrier = spawn.Barrier(workers)
            with ProcessPoolExecutor(workers, spawn, initializer=_begin, initargs=(barrier,)) as pool:
                rates = list(pool.map(_work, [name] * workers, [given.worker_seconds] * workers))
            by_clock, by_cpu = (sum(column) for column in zip(*rates, strict=True))
            table.row(name, str(workers), by_clock, by_cpu / workers)
    return table


def make_waveforms(seconds: float) -> list[Tensor]:
    """Make noise of about so many seconds, (S,) each."""
    generator = torch.Generator().manual_seed(0)
    lengths = seconds * SAMPLE_RATE * torch.linspace(SHORTEST, LONGEST, UTTERANCES)
    order = torch.randperm(UTTERANCES, generator=generator)
    return [0.1 * torch.randn(int(length), generator=generator) for length in lengths[order]]


def composed(*overrides: str) -> Config:
    """Compose conf/train.yaml with overrides."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("train", overrides=list(overrides))
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


def ours() -> Featurize:
    """conf/features/fbank.yaml, before the normalisation, which the others leave to somebody else."""
    return build_features(composed()).energies


def slaney() -> Featurize:
    """conf/features/slaney_fbank.yaml: NeMo's recipe, of the same size."""
    return build_features(composed("features=slaney_fbank")).energies


def kaldi(waveform: Tensor) -> Tensor:
    """torchaudio's Kaldi fbank."""
    import torchaudio.compliance.kaldi

    return torchaudio.compliance.kaldi.fbank(
        waveform[None] * INT16_SCALE, sample_frequency=SAMPLE_RATE, num_mel_bins=NUM_MEL_BINS
    )


def lhotse() -> Featurize:
    """lhotse's, of Kaldi's recipe in torch; "off by" is from samples that are not scaled to 16 bits."""
    from lhotse import Fbank, FbankConfig

    extractor = Fbank(FbankConfig(SAMPLE_RATE, num_filters=NUM_MEL_BINS, snip_edges=True, high_freq=0.0))
    return lambda waveform: extractor.extract(waveform * INT16_SCALE, SAMPLE_RATE)


def speechbrain() -> Featurize:
    """SpeechBrain's: another recipe (Hamming window, 400 points, no pre-emphasis, decibels) of the same size."""
    from speechbrain.lobes.features import Fbank

    compute = Fbank(sample_rate=SAMPLE_RATE, n_mels=NUM_MEL_BINS)
    return lambda waveform: compute(waveform[None])[0]


def kaldi_native() -> Featurize:
    """kaldi-native-fbank: C++, from which frames are taken one by one."""
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
KALDIS = MAKERS.keys() - {"asr, slaney_fbank", "SpeechBrain"}  # the contenders that follow Kaldi's recipe


def library_work(waveforms: list[Tensor]) -> Contender:
    """Give what no way around the frames can spare: the FFT and the product with the mel weights, of frames ready."""
    fbank = build_features(composed())
    assert isinstance(fbank, Fbank)
    frames = torch.randn(fbank.num_frames(max(map(len, waveforms))), FFT_POINTS)
    weights = torch.rand(FFT_POINTS // 2 + 1, NUM_MEL_BINS)
    spectrum = torch.fft.rfft(frames)
    power = spectrum.real.square()

    def work(waveform: Tensor) -> None:
        num_frames = fbank.num_frames(len(waveform))
        torch.fft.rfft(frames[:num_frames], out=spectrum[:num_frames])
        power[:num_frames] @ weights

    return functools.partial(_each, work, waveforms)


def _each(featurize: Callable[[Tensor], object], waveforms: list[Tensor]) -> None:
    for waveform in waveforms:
        featurize(waveform)


_barrier: Barrier  # of a process that works beside others


def _begin(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier
    torch.set_num_threads(1)


def _work(name: str, seconds: float) -> tuple[float, float]:
    """Featurize for so many seconds, from the moment at which all are ready; audio hours a second, and a CPU second."""
    waveforms, featurize = make_waveforms(10), MAKERS[name]()
    _each(featurize, waveforms)
    _barrier.wait()
    began, cpu_began, rounds = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        _each(featurize, waveforms)
        rounds += 1
    hours = rounds * sum(map(len, waveforms)) / SAMPLE_RATE / 3600
    return hours / (time.perf_counter() - began), hours / (time.process_time() - cpu_began)


if __name__ == "__main__":
    run_command(main)
