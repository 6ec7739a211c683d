/* The server's page: sends a recording to /transcribe and shows the answer, or shows captions (live.js). Its data are
   the server's limits. */
"use strict";
{
  const settings = JSON.parse(document.getElementById("settings").textContent);
  const FORM_BYTES = 20_000; // maximum overhead of the form, with hotwords

  /* Send a recording, and return the server's answer. */
  function send(blob, name, tell, signal) {
    const request = new XMLHttpRequest(); // fetch does not report progress of an upload
    signal.addEventListener("abort", () => request.abort());
    return new Promise((resolve, reject) => {
      const form = new FormData();
      form.append("file", blob, name);
      const hotwords = document.getElementById("hotwords")?.value.trim();
      if (hotwords) form.append("hotwords", hotwords);
      request.open("POST", "/transcribe");
      request.upload.addEventListener("progress", ({ loaded, total }) => {
        if (loaded < total) tell(`Sending ${name}`, loaded / total);
        else tell(`Recognising ${name}`);
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

  Live(Demo({
    maxSeconds: settings.max_seconds,
    maxBytes: settings.max_bytes - FORM_BYTES,
    async recognize(blob, name, tell, signal) {
      if (blob.size > settings.max_bytes) {
        throw new Error(`must be at most ${settings.max_bytes / 1e6} megabytes; it has ${(blob.size / 1e6).toFixed(1)}.`);
      }
      tell(`Sending ${name}`);
      return send(blob, name, tell, signal);
    },
  }));
}
