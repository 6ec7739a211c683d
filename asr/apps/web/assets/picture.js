/* Drawings below the words of a player: a ruler, the waveform, the log-mel picture.

     Picture.ruler(canvas, width, from, scale, colour)
     Picture.wave(canvas, width, {samples, rate, peak}, from, scale, colour)
     Picture.mel(canvas, width, {levels, num_mel_bins, sample_rate, window, shift}, from, scale)
     Picture.fit(canvas, width, height)    returns the canvas's context, scaled to CSS pixels
     Picture.clock(seconds)                returns a time as text

   levels: num_mel_bins levels from 0 to 15 for each frame, the lowest frequency first, two to a byte, the first in the
   low half; written by asr/apps/web/clips.py. window, shift: length and shift of a frame, in samples.

   A canvas shows `width` pixels from the time `from` (seconds), `scale` pixels per second. */
"use strict";
const Picture = (() => {
  const LEVELS = 16, WAVE_HEIGHT = 72, MEL_HEIGHT = 128, RULER_HEIGHT = 20;
  // From quiet to loud; lightness only increases, so that the picture can be read without colour.
  const STEPS = [[8, 10, 30], [52, 20, 92], [125, 35, 115], [196, 60, 90], [240, 110, 60], [252, 180, 80], [252, 245, 200]];

  const clock = (seconds) => {
    const whole = Math.max(0, seconds), minutes = Math.floor(whole / 60);
    return minutes ? `${minutes}:${(whole % 60).toFixed(1).padStart(4, "0")}` : `${whole.toFixed(2)} s`;
  };

  /* Fit a canvas to its visible size, and scale its context to CSS pixels. */
  function fit(canvas, width, height) {
    const ratio = devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    return context;
  }

  /* Draw the waveform; `peak` fills the height. */
  function wave(canvas, width, { samples, rate, peak }, from, scale, colour) {
    const context = fit(canvas, width, WAVE_HEIGHT), middle = WAVE_HEIGHT / 2;
    context.fillStyle = colour;
    for (let x = 0; x < width; x++) {
      const first = Math.floor((from + x / scale) * rate), last = Math.floor((from + (x + 1) / scale) * rate);
      if (first >= samples.length) break;
      const step = Math.max(1, Math.floor((last - first) / 400));
      let low = 0, high = 0;
      for (let i = first; i < last && i < samples.length; i += step) {
        low = Math.min(low, samples[i]);
        high = Math.max(high, samples[i]);
      }
      const top = middle - (high / peak) * middle, bottom = middle - (low / peak) * middle;
      context.fillRect(x, top, 1, Math.max(1, bottom - top));
    }
  }

  /* Draw ticks with their times, at intervals that leave room for the labels. */
  function ruler(canvas, width, from, scale, colour) {
    const context = fit(canvas, width, RULER_HEIGHT);
    const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 3600].find((one) => one * scale > 55) ?? 3600;
    context.font = "11px system-ui, sans-serif";
    context.fillStyle = colour;
    for (let k = Math.ceil(from / step); (k * step - from) * scale < width; k++) {
      const x = (k * step - from) * scale;
      context.fillRect(x, 0, 1, 5);
      if (k) context.fillText(step < 1 ? `${(k * step).toFixed(1)} s` : clock(k * step).replace(/\.0+/, ""), x + 4, 14);
    }
  }

  const COLOURS = Array.from({ length: LEVELS }, (_, level) => {
    const at = (level / (LEVELS - 1)) * (STEPS.length - 1), low = Math.min(Math.floor(at), STEPS.length - 2);
    return [...STEPS[low].map((value, i) => value + (STEPS[low + 1][i] - value) * (at - low)), 255];
  });

  function mel(canvas, width, { levels, num_mel_bins: bins, sample_rate: rate, window, shift }, from, scale) {
    const context = fit(canvas, width, MEL_HEIGHT), numFrames = Math.floor((2 * levels.length) / bins);
    const picture = context.createImageData(Math.ceil(width), bins);
    for (let x = 0; x < width; x++) {
      const t = Math.round(((from + (x + 0.5) / scale) * rate - window / 2) / shift);
      if (t < 0 || t >= numFrames) continue;
      for (let bin = 0; bin < bins; bin++) {
        const at = t * bins + bin, level = (levels[at >> 1] >> (4 * (at & 1))) & 15;
        picture.data.set(COLOURS[level], 4 * ((bins - 1 - bin) * picture.width + x));
      }
    }
    const small = document.createElement("canvas");
    small.width = picture.width;
    small.height = bins;
    small.getContext("2d").putImageData(picture, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, width, MEL_HEIGHT);
  }

  return { ruler, wave, mel, fit, clock };
})();
