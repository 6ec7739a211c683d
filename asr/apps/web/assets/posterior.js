/* The network's most probable tokens, frame by frame, drawn over time.

     const posterior = Posterior({tokens, frame_seconds, starts, counts, top}, base64)

   tokens: text of each token id, "" for the blank. starts: beginning of each segment, seconds. counts: frames of each.
   base64: for each frame `top` tokens, the most probable first, each as its id (2 bytes, little endian) and its
   probability (1 byte, 255 is 1); written by asr/apps/web/clips.py. */
"use strict";
const Posterior = (() => {
  const nameOf = (token) => (token === "" ? "blank" : token.replaceAll(" ", "␣"));

  return function (settings, base64) {
    const { tokens, frame_seconds: step, starts, counts, top } = settings;
    const bytes = Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
    const frames = []; // {start, best: [{token, share}]}
    starts.forEach((start, segment) => {
      for (let t = 0; t < counts[segment]; t++) {
        const best = [];
        for (let k = 0; k < top; k++) {
          const at = (frames.length * top + k) * 3;
          const share = bytes[at + 2] / 255;
          if (share > 0) best.push({ token: bytes[at] + 256 * bytes[at + 1], share });
        }
        frames.push({ start: start + t * step, best });
      }
    });

    /* Runs of frames with the same most probable token: [{first, last, token}], both frames included. */
    const runs = [];
    frames.forEach(({ start, best }, index) => {
      const token = best.length ? best[0].token : -1, run = runs.at(-1);
      const joins = run && run.token === token && Math.abs(frames[run.last].start + step - start) < step / 2;
      if (joins) run.last = index;
      else runs.push({ first: index, last: index, token });
    });

    /* The most probable token of a frame is a bar, whose colour changes with the token; blank is grey. Other probable
       tokens are horizontal strokes. Each run has its token as a label. */
    function draw(context, width, height, from, scale, colour) {
      const floor = height - 1, high = height - 22, wide = step * scale;
      const colours = [colour("--s1"), colour("--s5")], blankColour = colour("--line"), ink = colour("--text");
      let drawn = -Infinity, spoken = 0;
      context.font = "12px system-ui, sans-serif";
      context.textAlign = "center";
      for (const { first, last, token } of runs) {
        const blank = token < 0 || tokens[token] === "";
        if (!blank) spoken++;
        const left = (frames[first].start - from) * scale, right = (frames[last].start + step - from) * scale;
        if (right < 0 || left > width) continue;
        let highest = 0;
        for (let index = first; index <= last; index++) {
          const { start, best } = frames[index], x = (start - from) * scale;
          best.slice(0, wide > 5 ? best.length : 1).forEach(({ share }, rank) => {
            context.fillStyle = rank ? ink : blank ? blankColour : colours[spoken % 2];
            context.fillRect(x, floor - share * high, Math.max(1, wide - (wide > 4 ? 1 : 0)), rank ? 1.5 : share * high);
          });
          highest = Math.max(highest, best[0]?.share ?? 0);
        }
        const text = token < 0 ? "" : nameOf(tokens[token]), room = context.measureText(text).width + 3;
        const middle = (left + right) / 2;
        if (blank ? right - left < room + 8 : middle - room / 2 < drawn) continue;
        drawn = middle + room / 2;
        context.fillStyle = ink;
        context.fillText(text, middle, floor - highest * high - 5);
      }
    }

    /* Describe the most probable tokens at a time. */
    function describe(seconds) {
      const frame = frames.find(({ start }) => start <= seconds + 1e-6 && seconds < start + step);
      if (!frame) return "";
      const parts = frame.best.map(({ token, share }) => `${nameOf(tokens[token])} ${Math.round(100 * share)} %`);
      return `${frame.start.toFixed(2)} s: ${parts.join(", ")}`;
    }

    return { draw, describe };
  };
})();
