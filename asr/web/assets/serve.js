/* The demo: a file, an example or the microphone goes to /transcribe; what comes back is shown over the waveform.

   Its elements are those of asr/server/pages.py, the limits its data. */
"use strict";
(() => {
  const settings = JSON.parse(document.getElementById("settings").textContent);
  const by = (id) => document.getElementById(id);
  const [drop, status, problem, result] = ["drop", "status", "error", "result"].map(by);
  const percent = (share) => `${Math.round(100 * share)} %`;
  const UNSURE = 0.5; // words of less confidence are marked
  const FORM_BYTES = 1000; // at most, around a file
  let player = null, recorder = null, request = null, download = "";

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
    cancel.addEventListener("click", () => request?.abort());
    status.append(bar, words, cancel);
  }

  function fail(text) {
    busy("");
    problem.textContent = text;
    problem.hidden = false;
  }

  /* Send a recording, show the progress of it, and give back what the server says. */
  function send(blob, name) {
    return new Promise((resolve, reject) => {
      request = new XMLHttpRequest(); // fetch does not tell how much has been sent
      const form = new FormData();
      form.append("file", blob, name);
      request.open("POST", "/transcribe");
      request.upload.addEventListener("progress", ({ loaded, total }) => {
        const bar = status.querySelector("progress");
        if (!bar) return;
        if (loaded < total) bar.value = loaded / total;
        else bar.removeAttribute("value");
        status.querySelector("span").textContent = loaded < total ? `Sending ${name}` : `Recognising ${name}`;
      });
      request.addEventListener("load", () => {
        let answer = null;
        try { answer = JSON.parse(request.responseText); } catch { /* not the server's own answer */ }
        if (request.status === 200 && answer) resolve(answer);
        else reject(new Error(answer?.detail?.replace(/^file: /, "") || `the server answered with status ${request.status}.`));
      });
      request.addEventListener("error", () => reject(new Error("the server cannot be reached, or it closed the connection.")));
      request.addEventListener("abort", () => reject(new Error("cancelled.")));
      request.send(form);
    });
  }

  async function transcribe(blob, name) {
    request?.abort();
    request = null; // what that one says of it is not shown any more
    problem.hidden = true;
    result.hidden = true;
    player?.close();
    player = null;
    if (blob.size > settings.max_bytes) {
      fail(`${name}: must be at most ${settings.max_bytes / 1e6} megabytes; it has ${(blob.size / 1e6).toFixed(1)}.`);
      return;
    }
    busy(`Sending ${name}`);
    const mine = send(blob, name), sent = request;
    try {
      const answer = await mine;
      if (sent !== request) return;
      busy("");
      show(answer, blob);
    } catch (error) {
      if (sent === request) fail(`${name}: ${error.message}`);
    }
  }

  function show(answer, blob) {
    result.hidden = false;
    const text = by("text");
    text.replaceChildren();
    const spans = answer.words.map((word) => {
      const span = document.createElement("span"); // which can be selected; keys have the player's own words
      span.className = word.confidence < UNSURE ? "word unsure" : "word";
      span.textContent = word.text;
      span.title = `${word.start.toFixed(2)} to ${word.end.toFixed(2)} s, confidence ${percent(word.confidence)}`;
      span.addEventListener("click", () => player.jump(word.start, true));
      text.append(span, " ");
      return span;
    });
    if (!spans.length) text.textContent = "No words were heard.";
    const unsure = answer.words.filter((word) => word.confidence < UNSURE).length;
    const sure = answer.confidence === null ? "" : `, confidence ${percent(answer.confidence)}`;
    const marked = unsure ? ` Dotted: ${unsure} below ${percent(UNSURE)}.` : "";
    by("summary").textContent = `${answer.id || "recording"}: ${answer.duration.toFixed(1)} s, ${spans.length} words${sure}.${marked}`;
    fillTable(answer.words);
    if (download) URL.revokeObjectURL(download);
    download = URL.createObjectURL(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" }));
    by("download").href = download;
    by("copy").onclick = () => copy(answer.text);
    const onword = (current) => {
      spans.forEach((span, i) => span.classList.toggle("now", i === current));
      if (current < 0) return;
      const { offsetTop: top, offsetHeight: height } = spans[current]; // within the text, which may be long
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
      meter.setAttribute("aria-hidden", "true"); // the number stands beside it
      row.lastChild.prepend(meter, " ");
      return row;
    });
    by("words").querySelector("tbody").replaceChildren(...rows);
  }

  async function copy(text) {
    const before = "Copy text";
    try {
      await navigator.clipboard.writeText(text);
      by("copy").textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(by("text")); // clipboards, too, want https or localhost
      by("copy").textContent = "Selected: press Ctrl-C";
    }
    setTimeout(() => { by("copy").textContent = before; }, 2500);
  }

  /* ---- where recordings come from */

  by("file").addEventListener("change", ({ target }) => {
    const [file] = target.files;
    if (file) transcribe(file, file.name);
    target.value = ""; // so that the same file can be chosen again
  });

  for (const name of ["dragenter", "dragover", "dragleave", "drop"]) {
    document.addEventListener(name, (event) => {
      event.preventDefault(); // or the browser leaves the page and opens the file
      drop.classList.toggle("over", name.startsWith("drage") || name === "dragover");
      if (name === "dragleave") drop.classList.remove("over");
      if (name !== "drop") return;
      const files = event.dataTransfer.files;
      if (files.length === 1) transcribe(files[0], files[0].name);
      else fail(files.length ? `Drop one recording at a time; those were ${files.length}.` : "Drop a file; that was none.");
    });
  }

  for (const button of document.querySelectorAll(".example")) {
    button.addEventListener("click", async () => {
      const number = Number(button.dataset.number), name = settings.examples[number];
      try {
        const answer = await fetch(`/examples/${number}`);
        if (!answer.ok) throw new Error(`status ${answer.status}.`);
        await transcribe(await answer.blob(), name);
      } catch (error) {
        fail(`${name}: ${error.message}`);
      }
    });
  }

  const record = by("record"), hint = by("hint");
  const obstacle = Recorder.obstacle();
  if (obstacle) {
    record.disabled = true;
    record.setAttribute("aria-describedby", "hint");
    hint.textContent = obstacle;
  }

  async function finish() {
    const current = recorder;
    recorder = null;
    record.textContent = "Record";
    record.setAttribute("aria-pressed", "false");
    hint.textContent = "";
    transcribe(await current.stop(), "microphone.wav");
  }

  record.addEventListener("click", async () => {
    if (recorder) return finish();
    problem.hidden = true;
    record.disabled = true;
    try {
      recorder = await Recorder({
        onprogress(seconds, bytes, level) {
          if (!recorder) return;
          record.textContent = `Stop (${Math.floor(seconds)} s)`;
          hint.textContent = level > 0.01 ? "Recording." : "Recording; it is silent so far.";
          // What is longer or larger would be refused, and lost; some is still on its way.
          const most = Math.min(settings.max_seconds, (settings.max_bytes - FORM_BYTES) * (seconds / bytes));
          if (seconds >= most - 0.5) finish();
        },
      });
      record.textContent = "Stop";
      record.setAttribute("aria-pressed", "true");
    } catch (error) {
      const refused = error.name === "NotAllowedError";
      const none = error.name === "NotFoundError";
      fail(refused ? "The browser was not allowed to use the microphone. Allow it for this page in its settings." :
        none ? "There is no microphone." : `The microphone cannot be used: ${error.message}`);
    } finally {
      record.disabled = false;
    }
  });
})();
