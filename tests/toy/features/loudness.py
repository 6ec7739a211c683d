"""Logarithms of amplitudes."""


class Loudness:
    """Mean amplitude of each twentieth of a hop, on a logarithmic scale: (S,) to (T, F)."""

    dim = 20
    samples_ahead = 0
    frames_before = 0
    batched = None

    def __init__(self, *, normalize, sample_rate):
        self.normalize = normalize()
        self.sample_rate = sample_rate
        self.window = self.hop = self.samples_ahead = sample_rate // 100

    def __call__(self, waveform):
        return self.normalize(self._frames(waveform).abs().mean(dim=-1).add(1e-4).log())

    def _frames(self, waveform):
        count = self.num_frames(len(waveform))
        return waveform[: count * self.hop].reshape(count, self.dim, self.hop // self.dim)

    def energies(self, waveform):
        return self._frames(waveform).square().sum(dim=(1, 2))

    def num_frames(self, num_samples):
        return num_samples // self.hop
