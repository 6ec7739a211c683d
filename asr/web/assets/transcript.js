/* Log-probabilities to words with times and confidence, as asr.transcribe computes them with decode=greedy. A module.

     const frames = new Frames();
     frames.add(logProbs, vocabSize, first, end)    appends frames `first` to `end` of (T', V)
     transcript(frames, duration, settings)         returns the JSON of asr.transcribe

   settings: pieces, the text of each token, with a space between words; normalizer, as_written or basic; slope and
   intercept of the words' calibration; frame_seconds; segment_frames, the maximum number of frames decoded at once;
   character_seconds, see asr/recognition/timing.py. */

const BLANK = 0, ENTROPIC_INDEX = 1 / 2, CEILING = 1 - 1e-6; // as in asr/recognition

const OF_WORD = /^[\p{L}\p{M}\p{N}]$/u;

/* The normalisers of asr/text/normalize.py, for one word. */
export const NORMALIZERS = {
  as_written: (text) => [text.normalize("NFC")],
  basic(text) {
    const lowered = text.normalize("NFKC").toLowerCase().replaceAll("\u2019", "'");
    const characters = [...lowered.normalize("NFKC")];
    const ofWord = characters.map((character) => OF_WORD.test(character));
    const kept = characters.map((character, i) =>
      ofWord[i] || (character === "'" && ofWord[i - 1] && ofWord[i + 1]) ? character : " ");
    return kept.join("").split(" ").filter(Boolean);
  },
};

/* Values of each frame for decoding: its best token, log-probabilities of this token and of blank, its confidence. */
export class Frames {
  tokens = [];
  best = [];
  blank = [];
  clear = [];

  add(logProbs, vocabSize, first, end) {
    const largest = vocabSize ** (1 - ENTROPIC_INDEX) - 1;
    for (let frame = first; frame < end; frame++) {
      const row = logProbs.subarray(frame * vocabSize, (frame + 1) * vocabSize);
      let token = 0, sum = 0;
      row.forEach((value, i) => {
        if (value > row[token]) token = i;
        sum += Math.exp(ENTROPIC_INDEX * value);
      });
      if (Number.isNaN(sum)) throw new Error("the network's output must be numbers; got NaN.");
      this.tokens.push(token);
      this.best.push(row[token]);
      this.blank.push(row[BLANK]);
      this.clear.push(Math.min(Math.max(1 - (sum - 1) / largest, 0), 1)); // 1: no doubt, 0: all tokens equally likely
    }
  }
}

/* Return the end of a segment within frames `first` to `end`: the middle of the longest run of blanks or, without any,
   the frame where blank is most likely. */
function bestCut({ tokens, blank }, first, end) {
  let cut = 0, longest = 0, likely = first;
  for (let frame = first, run = 0; frame < end; frame++) {
    run = tokens[frame] === BLANK ? run + 1 : 0;
    if (run > longest) [longest, cut] = [run, frame + 1];
    if (blank[frame] > blank[likely]) likely = frame;
  }
  return longest ? Math.floor((2 * cut - longest) / 2) : likely;
}

/* Return [first, end] of each segment that is decoded separately. */
export function segments(frames, most) {
  const found = [], half = Math.floor(most / 2);
  let first = 0;
  while (frames.tokens.length - first > most) {
    const end = Math.max(first + 1, bestCut(frames, first + half, first + most));
    found.push([first, end]);
    first = end;
  }
  return [...found, [first, frames.tokens.length]];
}

/* Return the tokens of the best path; each is a run of frames. */
function spans({ tokens, clear }, first, end) {
  const runs = [];
  for (let frame = first; frame < end; frame++) {
    const token = tokens[frame];
    if (token === BLANK) continue;
    if (frame === first || tokens[frame - 1] !== token) runs.push({ token, start: frame, end: frame, confidence: 0 });
    const run = runs.at(-1);
    run.end = frame + 1;
    run.confidence = Math.max(run.confidence, clear[frame]); // a token has the highest confidence of its frames
  }
  return runs;
}

/* Convert runs of frames to words. A word has its text, the runs that spell it, and the number of its characters that
   the last run spells. */
function spell(runs, pieces) {
  const words = [];
  let text = "", first = 0, last = 0, tail = 0;
  const part = () => {
    if (text) words.push({ text, of: runs.slice(first, last + 1), tail });
    text = "";
  };
  runs.forEach((run, i) => {
    for (const character of pieces[run.token]) {
      if (character === " ") {
        part();
        continue;
      }
      tail = text && last === i ? tail + 1 : 1;
      [text, first, last] = [text + character, text ? first : i, i];
    }
  });
  part();
  return words;
}

function calibrated(confidence, { slope, intercept }) {
  const bounded = Math.min(Math.max(confidence, 1 - CEILING), CEILING);
  return (1 + Math.tanh((slope * Math.log(bounded / (1 - bounded)) + intercept) / 2)) / 2;
}

const rounded = (number, digits) => Number(number.toFixed(digits));

export function transcript(frames, duration, settings) {
  const normalize = NORMALIZERS[settings.normalizer];
  const words = [], step = settings.frame_seconds;
  for (const [first, end] of segments(frames, settings.segment_frames)) {
    const spelt = spell(spans(frames, first, end), settings.pieces);
    for (const [i, { text, of, tail }] of spelt.entries()) {
      const confidence = calibrated(of.reduce((product, run) => product * run.confidence, 1), settings);
      const next = Math.max(spelt[i + 1]?.of[0].start ?? end, of[0].start + 1); // a token may spell several words
      const start = of[0].start * step, limit = Math.min(next, end) * step;
      const stop = Math.min(of.at(-1).end * step + settings.character_seconds * (tail - 1), limit, duration);
      for (const word of normalize(text)) words.push({ text: word, start, end: stop, confidence });
    }
  }
  const text = words.map((word) => word.text).join(" ");
  const score = rounded(frames.best.reduce((sum, value) => sum + value, 0), 4);
  const sure = words.reduce((sum, word) => sum + word.confidence, 0) / words.length;
  return {
    text,
    duration: rounded(duration, 3),
    confidence: words.length ? rounded(sure, 4) : null,
    score,
    speech: frames.tokens.length > 0,
    words: words.map(({ text, start, end, confidence }) =>
      ({ text, start: rounded(start, 3), end: rounded(end, 3), confidence: rounded(confidence, 4) })),
    alternatives: [{ text, score }],
  };
}
