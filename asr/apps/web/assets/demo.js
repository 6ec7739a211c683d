/* A page that turns recordings into text: it takes a file, an example or the microphone, and shows the transcript with
   the waveform. The page's own script provides the recognition:

     Demo({
       recognize,               async (blob, name, tell, signal) -> the JSON of asr.transcribe
       maxSeconds, maxBytes,    limits of a recording from the microphone
     }) -> {
       fail(text),              shows an error; "" hides the last one
       attempt(name, async (tell, signal) -> ...),   runs another long task
       clear(),                 removes the last transcript
       copy(text, button, element),   copies a text, or selects the element if copying is forbidden; the button shows
                                      the outcome
       take(button), release(), enable only this button, or all buttons, of the class "microphone", which use the
                                microphone
     }

   An Error of an awaited function is shown. tell(text, share) reports the current step, and its completed fraction if
   known. The reason of the signal is "cancelled" (by the user) or "superseded" (by another task).

   demo.html has the elements. The page must include picture.js, player.js, microphone.js, recorder.js and demo.js, in
   this order. */
"use strict";
const Demo = ({ recognize, maxSeconds, maxBytes = Infinity }) => {
  const by = (id) => document.getElementById(id);
  const [drop, status, problem, result] = ["drop", "status", "error", "result"].map(by);
  const percent = (share) => `${Math.round(100 * share)} %`;
  const UNSURE = 0.5; // words with a lower confidence are marked
  let player = null, recorder = null, current = null, download = "";

  function busy(text) {
    status.replaceChildren();
    drop.setAttribute("aria-busy", String(Boolean(text)));
    if (!text) return;
    const bar = document.createElement("progress");
    bar.setAttribute("aria-label", text);
    const words = document.createElement("span");
    words.textContent = text;
    const cancel = document.createElement("button");
    cancel.type = "button";
    cancel.textContent = "Cancel";
    cancel.addEventListener("click", () => current?.abort("cancelled"));
    status.append(bar, words, cancel);
  }

  function fail(text) {
    problem.textContent = text;
    problem.hidden = !text;
  }

  function tell(text, share) {
    if (!status.firstChild) busy(text);
    const bar = status.querySelector("progress"), words = status.querySelector("span");
    if (words.textContent !== text) words.textContent = text;
    bar.setAttribute("aria-label", text);
    if (share === undefined) bar.removeAttribute("value");
    else bar.value = share;
  }

  /* Run a task and return its result; null if it failed (its error is shown after `name`) or another task has begun. */
  async function attempt(name, work) {
    current?.abort("superseded");
    const mine = new AbortController();
    current = mine;
    busy("");
    fail("");
    try {
      const outcome = await work((...what) => { if (mine === current) tell(...what); }, mine.signal);
      return mine === current ? outcome : null;
    } catch (error) {
      if (mine === current) fail(name + error.message);
      return null;
    } finally {
      if (mine === current) busy("");
    }
  }

  function clear() {
    result.hidden = true;
    player?.close();
    player = null;
  }

  async function transcribe(blob, name) {
    clear();
    const answer = await attempt(`${name}: `, (tell, signal) => recognize(blob, name, tell, signal));
    if (answer) show(answer, blob);
  }

  function show(answer, blob) {
    result.hidden = false;
    const text = by("text");
    text.replaceChildren();
    const spans = answer.words.map((word) => {
      const span = document.createElement("span"); // its text can be selected; the words of the player handle keys
      span.className = word.confidence < UNSURE ? "word unsure" : "word";
      span.textContent = word.text;
      span.title = `${word.start.toFixed(2)} to ${word.end.toFixed(2)} s, confidence ${percent(word.confidence)}`;
      span.addEventListener("click", () => player.jump(word.start, true));
      text.append(span, " ");
      return span;
    });
    if (!spans.length) text.textContent = "No words were recognised.";
    const unsure = answer.words.filter((word) => word.confidence < UNSURE).length;
    const sure = answer.confidence === null ? "" : `, confidence ${percent(answer.confidence)}`;
    const marked = unsure ? ` Dotted: words with a confidence below ${percent(UNSURE)} (${unsure}).` : "";
    by("summary").textContent = `${answer.id || "recording"}: ${answer.duration.toFixed(1)} s, ${spans.length} words${sure}.${marked}`;
    fillTable(answer.words);
    if (download) URL.revokeObjectURL(download);
    download = URL.createObjectURL(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" }));
    by("download").href = download;
    by("copy").onclick = () => copy(answer.text, by("copy"), text);
    const onword = (current) => {
      spans.forEach((span, i) => span.classList.toggle("now", i === current));
      if (current < 0) return;
      const { offsetTop: top, offsetHeight: height } = spans[current]; // positions in the text, which may be long
      if (top < text.scrollTop || top + height > text.scrollTop + text.clientHeight) text.scrollTop = top - height;
    };
    player = Player(by("player"), { audio: blob, duration: answer.duration, words: answer.words, onword });
    by("result-title").focus({ preventScroll: true });
    result.scrollIntoView({ block: "start" });
  }

  function fillTable(words) {
    const cells = (word) => [word.text, word.start.toFixed(2), word.end.toFixed(2), percent(word.confidence)];
    const rows = words.map((word) => {
      const row = document.createElement("tr");
      cells(word).forEach((value, column) => {
        const cell = row.insertCell();
        cell.textContent = value;
        if (column) cell.className = "number";
      });
      const meter = document.createElement("meter");
      meter.value = word.confidence;
      meter.setAttribute("aria-hidden", "true"); // screen readers read the number beside it
      row.lastChild.prepend(meter, " ");
      return row;
    });
    by("words").querySelector("tbody").replaceChildren(...rows);
  }

  async function copy(text, button, element) {
    const before = "Copy text";
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(element); // clipboards also require https or localhost
      button.textContent = "Selected: press Ctrl-C";
    }
    setTimeout(() => { button.textContent = before; }, 2500);
  }

  /* ---- sources of recordings */

  by("file").addEventListener("change", ({ target }) => {
    const [file] = target.files;
    if (file) transcribe(file, file.name);
    target.value = ""; // so that the same file can be chosen again
  });

  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault(); // otherwise the browser leaves the page and opens the file
      drop.classList.toggle("over", name.startsWith("drage") || name === "dragover");
      if (name === "dragleave") drop.classList.remove("over");
      if (name !== "drop") return;
      const files = event.dataTransfer.files;
      if (files.length === 1) transcribe(files[0], files[0].name);
      else fail(files.length ? `Drop one recording at a time; got ${files.length} files.` : "Drop a file; got no file.");
    });
  }

  for (const button of document.querySelectorAll(".example")) {
    button.addEventListener("click", async () => {
      const { address, name } = button.dataset;
      try {
        const answer = await fetch(address);
        if (!answer.ok) throw new Error(`status ${answer.status}.`);
        await transcribe(await answer.blob(), name);
      } catch (error) {
        fail(`${name}: ${error.message}`);
      }
    });
  }

  const record = by("record"), hint = by("hint");
  const users = [...document.querySelectorAll(".microphone")];
  const take = (button) => users.forEach((one) => { one.disabled = one !== button; });
  const release = () => users.forEach((one) => { one.disabled = false; });
  const obstacle = Microphone.obstacle();
  if (obstacle) {
    take(null);
    users.forEach((one) => one.setAttribute("aria-describedby", "hint"));
    hint.textContent = obstacle;
  }

  async function finish() {
    const ended = recorder;
    recorder = null;
    record.textContent = "Record";
    record.setAttribute("aria-pressed", "false");
    release();
    hint.textContent = "";
    transcribe(await ended.stop(), "microphone.wav");
  }

  record.addEventListener("click", async () => {
    if (recorder) return finish();
    fail("");
    take(null);
    try {
      recorder = await Recorder({
        onprogress(seconds, bytes, level) {
          if (!recorder) return;
          record.textContent = `Stop (${Math.floor(seconds)} s)`;
          hint.textContent = level > 0.01 ? "Recording." : "Recording; no sound so far.";
          // A longer or larger recording would be refused; some samples have not arrived yet.
          const most = Math.min(maxSeconds, maxBytes * (seconds / bytes));
          if (seconds >= most - 0.5) finish();
        },
      });
      record.textContent = "Stop";
      record.setAttribute("aria-pressed", "true");
      take(record);
    } catch (error) {
      release();
      fail(Microphone.problem(error));
    }
  });

  return { fail, attempt, clear, copy, take, release };
};
