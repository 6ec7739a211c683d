/* Runs the model in a worker, so that the page stays responsive. This is a module, in the same folder as transcript.js
   and onnxruntime.js (onnxruntime-web's build for one thread).

   It receives                                       and sends
     {task: "load", settings}                          {loading: "download", share} ..., {loading: "prepare"}, {loaded, kept}
     {task: "recognize", number, waveform, duration}   {number, share} ..., {number, answer}
     {task: "forget", number}                          nothing: the recording is cancelled
   or {problem}, with {number} if it concerns only that recording. Recordings are recognised one after another.

   settings: files [{name, bytes}] (the model, then the runtime), version, cache (name of the cache), sample_rate,
   vocab_size, frame_samples, chunk_seconds, chunk_samples, context_samples, and the settings of transcript.js. */

const LEAST_SECONDS = 1; // minimum input of the network; padding does not change the output

let settings = null, ort = null, session = null, decoding = null;
const forgotten = new Set();

const here = (name) => `./${name}?version=${settings.version}`;

/* The browser's cache of downloads; null at addresses that are not secure. */
async function store() {
  try {
    return await caches.open(settings.cache);
  } catch {
    return null;
  }
}

async function fetched(name, tell) {
  let answer;
  tell(0);
  try {
    answer = await fetch(here(name));
  } catch {
    throw new Error(`${name} cannot be downloaded: the server of this page does not answer.`);
  }
  if (!answer.ok) throw new Error(`${name} must be in this page's folder; the server answers with status ${answer.status}.`);
  const parts = [], reader = answer.body.getReader();
  for (;;) {
    const { done, value } = await reader.read().catch(() => {
      throw new Error(`${name} could not be downloaded completely: the connection was lost.`);
    });
    if (done) break;
    parts.push(value);
    tell(value.length);
  }
  return new Blob(parts).arrayBuffer();
}

/* Load the files, from the cache if they are there; return them, and whether all are in the cache now. */
async function download() {
  const kept = await store();
  const total = settings.files.reduce((sum, { bytes }) => sum + bytes, 0);
  let got = 0;
  let isKept = kept !== null;
  const contents = [];
  for (const { name, bytes } of settings.files) {
    const tell = (count) => {
      got += count;
      postMessage({ loading: "download", share: Math.min(got / total, 1) });
    };
    const before = await kept?.match(here(name));
    let content = await before?.arrayBuffer();
    if (content?.byteLength === bytes) got += bytes;
    else {
      content = await fetched(name, tell);
      if (content.byteLength !== bytes) {
        throw new Error(`${name} must have ${bytes} bytes, as when the page was made; the server sent ${content.byteLength}. Copy all files of the page to the server.`);
      }
      await kept?.put(here(name), new Response(content)).catch(() => { isKept = false; }); // the cache may be full
    }
    contents.push(content);
  }
  return [...contents, isKept];
}

async function load() {
  const [model, runtime, kept] = await download();
  postMessage({ loading: "prepare" });
  [ort, decoding] = await Promise.all(["onnxruntime.js", "transcript.js"].map((name) => import(here(name)).catch(() => {
    throw new Error(`${name} must be in this page's folder, and intact; it cannot be run.`);
  })));
  ort.env.logLevel = "error";
  ort.env.wasm.wasmBinary = runtime;
  ort.env.wasm.numThreads = 1; // more threads would need HTTP headers that a simple file server does not send
  session = await ort.InferenceSession.create(new Uint8Array(model), { logSeverityLevel: 3 });
  postMessage({ loaded: true, kept });
}

/* Compute log_probs of a waveform (S,), and the number of frames that are within the recording. */
async function run(waveform) {
  const padded = new Float32Array(Math.max(waveform.length, LEAST_SECONDS * settings.sample_rate));
  padded.set(waveform);
  const out = await session.run({
    waveforms: new ort.Tensor("float32", padded, [1, padded.length]),
    sample_counts: new ort.Tensor("int64", BigInt64Array.of(BigInt(waveform.length)), [1]),
  });
  return { logProbs: out.log_probs.data, count: Number(out.log_probs_lengths.data[0]) };
}

/* Return overlapping chunks as in asr/core/recognition/chunks.py: [start, first sample whose output is used, end]. */
function chunks(length) {
  const { chunk_samples: chunk, context_samples: context } = settings;
  if (length <= settings.chunk_seconds * settings.sample_rate) return [[0, 0, length]];
  const found = [];
  let start = 0;
  const add = (end) => found.push([start, start ? start + context : 0, end]);
  for (; length - start > chunk; start += chunk - 2 * context) add(start + chunk);
  add(length);
  return found;
}

async function recognize({ number, waveform, duration }) {
  const frames = new decoding.Frames(), cut = chunks(waveform.length);
  for (const [i, [start, keep, end]] of cut.entries()) {
    await new Promise((resolve) => { setTimeout(resolve); }); // lets the worker receive messages
    if (forgotten.delete(number)) return;
    if (cut.length > 1) postMessage({ number, share: i / cut.length });
    const { logProbs, count } = await run(waveform.subarray(start, end));
    const frame = (sample) => (sample - start) / settings.frame_samples;
    frames.add(logProbs, settings.vocab_size, frame(keep), i + 1 < cut.length ? frame(cut[i + 1][1]) : count);
  }
  postMessage({ number, answer: decoding.transcript(frames, duration, settings) });
}

/* Describe an error. */
function said(error) {
  if (typeof error === "number") return "the browser does not have enough memory for this recording.";
  return error.message || String(error);
}

let before = Promise.resolve(); // ends with the last task

onmessage = ({ data }) => {
  if (data.task === "load") {
    settings = data.settings;
    load().catch((error) => postMessage({ problem: said(error) }));
  } else if (data.task === "recognize") {
    before = before.then(() => recognize(data)).catch((error) => postMessage({ number: data.number, problem: said(error) }));
  } else {
    forgotten.add(data.number);
  }
};
