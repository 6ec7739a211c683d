/* The page of a folder of files: the browser recognises recordings in a worker (recognizer.js). The page's data are the
   settings of recognizer.js, and max_seconds. */
"use strict";
{
  const settings = JSON.parse(document.getElementById("settings").textContent);
  settings.cache = `asr ${new URL(".", location).pathname} ${settings.version}`; // the same as in service-worker.js
  const by = (id) => document.getElementById(id);
  const [button, here] = ["load", "here"].map(by);
  const bytes = settings.files.reduce((sum, file) => sum + file.bytes, 0);
  const download = `Downloading the model (${Math.round(bytes / 1e6)} MB)`;
  const cancelled = () => new Error("cancelled.");
  const waiting = new Map(); // recordings in the worker: {resolve, reject, tell} by number
  let worker = null, loading = null, number = 0;

  function obstacle() {
    if (location.protocol === "file:") {
      return "Browsers do not run this page as a file. Run python -m http.server in its folder, and open localhost:8000";
    }
    if (!window.WebAssembly || !window.Worker) return "This browser has no WebAssembly, or no workers; use a newer browser.";
    return "";
  }

  function stop(error) {
    worker?.terminate();
    worker = loading = null;
    for (const { reject } of waiting.values()) reject(error);
    waiting.clear();
  }

  /* Load the model once; report progress to the last caller. */
  function load(tell, signal) {
    signal.addEventListener("abort", () => { if (signal.reason === "cancelled" && !loading?.done) stop(cancelled()); });
    if (!loading) {
      const mine = new Worker(`recognizer.js?version=${settings.version}`, { type: "module" });
      worker = mine;
      loading = { done: false, said: ["Preparing the model"] };
      loading.promise = new Promise((resolve, reject) => {
        waiting.set("loading", { resolve, reject });
      });
      worker.addEventListener("message", ({ data }) => { if (mine === worker) heard(data); });
      worker.addEventListener("error", (event) => {
        const missing = "recognizer.js must be in this page's folder, and intact; it cannot be run.";
        if (mine === worker) stop(new Error(event.message || missing));
      });
      worker.postMessage({ task: "load", settings });
    }
    loading.tell = tell;
    if (!loading.done) tell(...loading.said);
    return loading.promise;
  }

  function heard(data) {
    if (data.loading) {
      loading.said = data.loading === "download" ? [download, data.share] : ["Preparing the model"];
      loading.tell(...loading.said);
    } else if (data.loaded) {
      loading.done = true;
      button.hidden = true;
      here.textContent = data.kept ? "The model is stored in this browser: no network is needed." : "The model is loaded.";
      waiting.get("loading").resolve();
      waiting.delete("loading");
    } else if (data.number === undefined) stop(new Error(data.problem));
    else answered(data);
  }

  function answered({ number, share, answer, problem }) {
    const recording = waiting.get(number);
    if (!recording) return; // the recording was cancelled
    if (share !== undefined) {
      recording.tell(share);
      return;
    }
    waiting.delete(number);
    if (problem) recording.reject(new Error(problem));
    else recording.resolve(answer);
  }

  function ask(waveform, duration, tell, signal) {
    number += 1;
    const mine = number;
    return new Promise((resolve, reject) => {
      waiting.set(mine, { resolve, reject, tell });
      signal.addEventListener("abort", () => {
        waiting.delete(mine);
        worker?.postMessage({ task: "forget", number: mine });
        reject(cancelled());
      });
      worker.postMessage({ task: "recognize", number: mine, waveform, duration }, [waveform.buffer]);
    });
  }

  /* Return the length of a recording according to its header, in seconds; NaN or Infinity if unknown. */
  function declared(blob) {
    const audio = new Audio(), address = URL.createObjectURL(blob);
    return new Promise((resolve) => {
      audio.addEventListener("loadedmetadata", () => resolve(audio.duration));
      audio.addEventListener("error", () => resolve(NaN));
      audio.preload = "metadata";
      audio.src = address;
    }).finally(() => URL.revokeObjectURL(address));
  }

  function check(seconds) {
    if (!(seconds > settings.max_seconds) || seconds === Infinity) return;
    const [most, given] = [settings.max_seconds, seconds].map((value) => `${(value / 60).toFixed(0)} minutes`);
    throw new Error(`must be at most ${most} long to fit into a browser's memory; it is ${given}. Cut it into parts.`);
  }

  async function decoded(blob) {
    check(await declared(blob)); // before decoding, which takes much more memory
    const waveform = await Player.decode(blob, settings.sample_rate).catch(() => {
      throw new Error("must be audio that this browser can decode; it is another kind of file, or damaged.");
    });
    check(waveform.length / settings.sample_rate);
    return waveform;
  }

  const demo = Demo({
    maxSeconds: settings.max_seconds,
    async recognize(blob, name, tell, signal) {
      tell(`Reading ${name}`);
      const waveform = await decoded(blob);
      if (signal.aborted) throw cancelled();
      await load(tell, signal);
      if (signal.aborted) throw cancelled();
      tell(`Recognising ${name}`);
      const duration = waveform.length / settings.sample_rate;
      const answer = await ask(waveform, duration, (share) => tell(`Recognising ${name}`, share), signal);
      return { id: name, ...answer };
    },
  });

  button.addEventListener("click", () => demo.attempt("", load));

  /* Cache the page itself; load the model at once if it was downloaded before. */
  async function begin() {
    navigator.serviceWorker?.register("service-worker.js").catch(() => {}); // without it, the page opens only with a network
    const kept = await caches.open(settings.cache);
    const found = await Promise.all(settings.files.map(({ name }) => kept.match(`./${name}?version=${settings.version}`)));
    if (found.every(Boolean)) load(() => {}, new AbortController().signal).catch(() => {});
  }

  const problem = obstacle();
  if (problem) {
    demo.fail(problem);
    for (const part of [by("drop"), button, here]) part.hidden = true;
  } else if (window.caches) begin().catch(() => {}); // browsers hide `caches` at insecure addresses
}
