/* Log-probabilities to words with times and confidence, as asr.transcribe computes them with decode=greedy. A module.

     const frames = new Frames();
     frames.add(logProbs, vocabSize, first, end)    appends frames `first` to `end` of (T', V)
     transcript(frames, duration, settings)         returns the JSON of asr.transcribe

   settings: pieces, the text of each token, with a space between words; normalizer, a key of NORMALIZERS; slope and
   intercept of the words' calibration; frame_seconds; segment_frames, the maximum number of frames decoded at once;
   character_seconds, see asr/core/recognition/timing.py. */

const BLANK = 0, ENTROPIC_INDEX = 1 / 2, CEILING = 1 - 1e-6; // as in asr/core/recognition

/* Scripts, signs and spellings: asr/base/text/scripts.py, asr/base/text/spelling.py. */
const HEBREW = "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u05d0-\u05ea\u05ef-\u05f2";
const JOINING = "\u0600-\u08ff\u0900-\u0dff\u1000-\u109f\u1780-\u180d\u180f-\u18af\u1900-\u1c4f\u1cd0-\u1cff\ua800-\uabff"
  + "\u{10ac0}-\u{11fff}\u{1e900}-\u{1e95f}";
const VIRAMA = "\u094d\u09cd\u0a4d\u0acd\u0b4d\u0bcd\u0c4d\u0ccd\u0d4d\u0dca", JOINERS = "\u200c\u200d\u180e";
const UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u3005-\u3007\u3031-\u3035\u3040-\u30fa"
  + "\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaadf\uf900-\ufaff\uff66-\uff9f"
  + "\u{1aff0}-\u{1b16f}\u{20000}-\u{323af}";
const APOSTROPHES = "\u00b4`\u2018\u201b\u2032\u0384\u1fbd\u1fbf\u055a", MIDDLE = "\u00b7\u2027\u055f\u05f4";
const GERESH = "\u05f3", SIGNS = `'"${APOSTROPHES}${MIDDLE}${GERESH}`, UNCHANGED = SIGNS + JOINERS;
const SIMPLER = { "\u2019": "'", "\u201d": '"', "\u2139": " ", "\ufbdd": "\u0677" };
const BLANK_SIGN = /[\u0600-\u0605\u06dd\u0890\u0891\u08e2\u200b\u{110bd}\u{110cd}\u3164\uffa0]/u;
const INVISIBLE = /[\p{Cf}\p{Me}\u055b\u055c\u055e\u034f\ufe00-\ufe0f\u{e0100}-\u{e01ef}]/u;
const SPACING_MARK = /[\u309b\u309c\ufc5e-\ufc63\ufe70-\ufe7f]/;
const AS_IT_IS = new RegExp("[\u0149\u0587\u0675-\u0678\u0e33\u0eb3\u0edc\u0edd\u0f77\u0f79\u1e9a\u3131-\u318e\u2120\u2122"
  + "\u00aa\u00ba\u3196-\u319f]|(?=[\u{1f000}-\u{1faff}])\\p{So}|(?![\uff70\uff9e\uff9f])\\p{Lm}|^\\p{M}", "u");
const JAMO = new Map(Array.from({ length: 0x33 }, (_, i) => String.fromCharCode(0x3131 + i))
  .map((jamo) => [jamo.normalize("NFKC"), jamo])); // halfwidth letters become the usual ones, not conjoining ones

const wordSign = /[\p{L}\p{N}]/u, markSign = /\p{M}/u;
const LETTER = "[\\p{L}\\p{Nl}\\p{No}]", NOT_CJK = `(?![${UNSPACED}])`;
const TWICE_DOTTED = /i\u0307(?![\u0300-\u036f])/g;
const JOINER = new RegExp(`(?<=[${JOINING}])([${JOINERS}])[${JOINERS}]*(?=[${JOINING}])|`
  + `(?<=[${VIRAMA}])(\u200d)[${JOINERS}]*|[${JOINERS}]+`, "gu");
const LONE_MARKS = new RegExp(`(?<=^|[ ${SIGNS}])[\\p{M}${JOINERS}]+`, "gu");
const APOSTROPHE = new RegExp(`(?<=[^ \\p{Nd}${SIGNS}\u02bc])[${APOSTROPHES}\u02bc](?=${LETTER})(?!\u02bc)`, "gu");
const GERSHAYIM_TYPED = new RegExp(`(?<=[${HEBREW}])"(?=[\u05d0-\u05ea])`, "g");
const GERESH_TYPED = new RegExp(`(?<=[${HEBREW}])'(?=[\u05d0-\u05ea])`, "g");
const SEPARATOR = new RegExp(`[${SIGNS}](?!(?<=[^ ${SIGNS}]')(?=[\\p{L}\\p{N}])|(?<=[^ \\p{Nd}${SIGNS}${UNSPACED}]`
  + `[${MIDDLE}])${NOT_CJK}(?=${LETTER})|(?<=[${HEBREW}]${GERESH}))`, "gu");

function spelled(character) {
  if (UNCHANGED.includes(character)) return character;
  if (character in SIMPLER) return SIMPLER[character];
  if (BLANK_SIGN.test(character)) return " ";
  if (INVISIBLE.test(character)) return "";
  const parts = character.normalize("NFKC");
  if (parts !== character.normalize("NFC") && !AS_IT_IS.test(character)) {
    if (JAMO.has(parts) && character >= "\uffa0") return JAMO.get(parts);
    if (SPACING_MARK.test(character)) return parts.trimStart();
    if (parts.includes("\u2044")) return ` ${parts.replace("\u2044", " ")}`;
    if (!parts.startsWith(" ") && parts !== character) return [...parts.toLowerCase()].map(spelled).join("");
  }
  return wordSign.test(character) || markSign.test(character) ? character : " ";
}

/* The normalisers of asr/base/text/normalize.py, for one word. */
export const NORMALIZERS = {
  as_written: (text) => [text.normalize("NFC")],
  basic(text) {
    text = text.normalize("NFC").replaceAll("\u0130", "i").toLowerCase();
    text = [...text].map(spelled).join("").replace(JOINER, "$1$2").normalize("NFC").replace(TWICE_DOTTED, "i");
    text = text.replace(LONE_MARKS, "").replace(APOSTROPHE, "'");
    text = text.replace(GERSHAYIM_TYPED, "\u05f4").replace(GERESH_TYPED, GERESH);
    return text.replace(SEPARATOR, " ").split(" ").filter(Boolean);
  },
  basic_turkic: (text) =>
    NORMALIZERS.basic(text.normalize("NFC").replaceAll("I", "\u0131").replaceAll("\u0130", "i")),
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
