/* Log-mel energies of one frame at a time: what asr/features/fbank.py computes, before it is normalised.

     const fbank = Fbank(samples, {sample_rate, num_mel_bins, window, shift});   window and shift in samples
     fbank.numFrames; fbank.frame(t)  ->  Float32Array(num_mel_bins), natural logarithm

   Source: Kaldi's compute-fbank-feats: mean taken off, pre-emphasis 0.97, Povey window, power spectrum, triangles that
   are even on the mel scale from 20 Hz to Nyquist. Frames are computed when they are first asked for. */
"use strict";
const Fbank = (() => {
  const SCALE = 32768, PREEMPHASIS = 0.97, LOWEST_HZ = 20, FLOOR = 1.1920929e-7; // float32's epsilon, as in Kaldi
  const mel = (hertz) => 1127 * Math.log(1 + hertz / 700);

  /* weights[m] = {first, values}: the triangle of bin m over the spectrum's lines */
  function triangles(numBins, size, sampleRate) {
    const low = mel(LOWEST_HZ), step = (mel(sampleRate / 2) - low) / (numBins + 1);
    return Array.from({ length: numBins }, (_, m) => {
      const left = low + m * step, centre = left + step, right = centre + step, values = [];
      let first = 0;
      for (let k = 0; k < size / 2; k++) {
        const at = mel((k * sampleRate) / size);
        if (at <= left || at >= right) continue;
        if (!values.length) first = k;
        values.push(at <= centre ? (at - left) / step : (right - at) / step);
      }
      return { first, values };
    });
  }

  /* In place, radix 2. */
  function fourier(re, im, cos, sin) {
    const n = re.length;
    for (let i = 1, j = 0; i < n; i++) {
      let bit = n >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) {
        [re[i], re[j]] = [re[j], re[i]];
        [im[i], im[j]] = [im[j], im[i]];
      }
    }
    for (let length = 2; length <= n; length *= 2) {
      const half = length / 2, stride = n / length;
      for (let start = 0; start < n; start += length) {
        for (let k = 0; k < half; k++) {
          const a = start + k, b = a + half, c = cos[k * stride], s = sin[k * stride];
          const x = re[b] * c - im[b] * s, y = re[b] * s + im[b] * c;
          re[b] = re[a] - x; im[b] = im[a] - y;
          re[a] += x; im[a] += y;
        }
      }
    }
  }

  return function (samples, settings) {
    const { sample_rate: sampleRate, num_mel_bins: numBins, window: width, shift } = settings;
    const size = 2 ** Math.ceil(Math.log2(width));
    const taper = Float64Array.from({ length: width }, (_, i) =>
      (0.5 - 0.5 * Math.cos((2 * Math.PI * i) / (width - 1))) ** 0.85);
    const cos = Float64Array.from({ length: size / 2 }, (_, k) => Math.cos((2 * Math.PI * k) / size));
    const sin = Float64Array.from({ length: size / 2 }, (_, k) => -Math.sin((2 * Math.PI * k) / size));
    const bins = triangles(numBins, size, sampleRate);
    const re = new Float64Array(size), im = new Float64Array(size), done = new Map();

    function compute(t) {
      const start = t * shift;
      let mean = 0;
      for (let i = 0; i < width; i++) mean += samples[start + i];
      mean /= width;
      re.fill(0); im.fill(0);
      for (let i = 0; i < width; i++) {
        const before = samples[start + Math.max(i - 1, 0)] - mean;
        re[i] = (samples[start + i] - mean - PREEMPHASIS * before) * taper[i] * SCALE;
      }
      fourier(re, im, cos, sin);
      return Float32Array.from(bins, ({ first, values }) => {
        let energy = 0;
        for (let k = 0; k < values.length; k++) {
          energy += values[k] * (re[first + k] ** 2 + im[first + k] ** 2);
        }
        return Math.log(Math.max(energy, FLOOR));
      });
    }

    return {
      numFrames: Math.max(0, Math.floor((samples.length - width) / shift) + 1),
      frame(t) {
        if (!done.has(t)) done.set(t, compute(t));
        return done.get(t);
      },
    };
  };
})();
