/* Captions on the server's page: shows the words from captions.js during speech.

     Live(demo)   `demo` is the result of Demo

   Its elements are those of live.html, and the button "caption" among those of demo.html. */
"use strict";
const Live = ({ fail, clear, copy, take, release }) => {
  const by = (id) => document.getElementById(id);
  const [button, hint, section, lines] = ["caption", "hint", "live", "lines"].map(by);
  let captions = null;

  /* Lines of captions in an element; the last line has provisional words. */
  function Lines(element) {
    const partial = document.createElement("span");
    partial.className = "partial";
    partial.setAttribute("aria-hidden", "true"); // a screen reader would repeat them all the time
    let line = null, isNew = true;
    element.replaceChildren();
    return {
      show(final, words, isEnd) {
        const atEnd = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
        if (isNew && (final.length || words)) {
          line = element.appendChild(document.createElement("p"));
          isNew = false;
        }
        partial.textContent = words;
        if (line) {
          line.append(partial); // moves it from the previous line when the line is new
          if (final.length) partial.before(`${final.join(" ")} `);
        }
        isNew = isNew || isEnd;
        if (atEnd) element.scrollTop = element.scrollHeight; // not if the user has scrolled back
      },
      text: () => [...element.children].map((one) => one.textContent.trim()).join("\n"),
    };
  }

  function lag({ words, final, unsent }) {
    const seconds = (value) => `${value.toFixed(value < 1 ? 2 : 1)} s`;
    const behind = unsent > 1 ? ` ${seconds(unsent)} of audio are not sent yet.` : "";
    const settled = final === undefined ? "" : `, and become final ${seconds(final)} after the end of the word was sent`;
    return `Latency: words appear ${seconds(words)} after the audio that they need was sent${settled}.${behind}`;
  }

  function hush(text) {
    captions = null;
    button.textContent = "Captions";
    button.setAttribute("aria-pressed", "false");
    release();
    hint.textContent = "";
    const said = lines.textContent.trim();
    by("copy-lines").hidden = !said;
    if (!said) lines.textContent = "No words were recognised.";
    if (text) fail(text);
    section.hidden = Boolean(text) && !said;
  }

  button.addEventListener("click", async () => {
    if (captions) {
      take(null);
      button.textContent = "Stopping";
      hint.textContent = "Waiting for the last words.";
      return captions.stop();
    }
    fail("");
    take(null);
    const shown = Lines(lines);
    by("latency").textContent = "";
    by("copy-lines").hidden = true;
    by("copy-lines").onclick = () => copy(shown.text(), by("copy-lines"), lines);
    try {
      captions = await Captions({
        onready({ note }) {
          hint.textContent = "Listening: speak.";
          by("live-note").textContent = note && `This model takes longer: ${note}.`;
          by("live-note").hidden = !note;
        },
        onwords({ final, partial, isEnd, latency }) {
          shown.show(final, partial, isEnd);
          by("latency").textContent = lag(latency);
        },
        onend: hush,
      });
      button.textContent = "Stop captions";
      button.setAttribute("aria-pressed", "true");
      take(button);
      clear();
      section.hidden = false;
    } catch (error) {
      hush(Microphone.problem(error));
    }
  });
};
