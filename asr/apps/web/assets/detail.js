/* An utterance in a dialog: its aligned texts, recording, features and posteriors.

     const detail = Detail({data, onclose, onstep});
     detail.open(row)    detail.close()    detail.row: the open row, or null

   data is written by asr/apps/report/evaluation.py. onstep(+1 or -1) requests the next or the previous row. */
"use strict";
const Detail = (() => {
  const KIND = { S: "sub", I: "ins" };

  function button(text, label, action) {
    const one = make("button", "", text);
    one.type = "button";
    one.setAttribute("aria-label", label);
    one.title = label;
    one.addEventListener("click", action);
    return one;
  }

  const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

  /* The kinds of the hypothesis's words ("=", "S" or "I"), in order. */
  const kinds = (edits) => [...edits].filter((kind) => kind !== "D");

  function wordsOf(system) {
    const texts = system.hypothesis ? system.hypothesis.split(" ") : [], kind = kinds(system.edits);
    return texts.map((text, i) => ({ text, start: system.times[2 * i], end: system.times[2 * i + 1], kind: KIND[kind[i]] }));
  }

  function attachment(name) {
    return document.getElementById(name)?.textContent ?? null;
  }

  function bytesOf(base64) {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  }

  return function ({ data, onclose, onstep }) {
    const dialog = make("dialog", "detail"), head = make("header"), body = make("div", "detail-body");
    const title = make("h2"), facts = make("p", "muted"), state = { row: null, player: null };
    title.id = "detail-title";
    dialog.setAttribute("aria-labelledby", title.id);
    const tools = make("div", "tools");
    tools.append(
      button("←", "Previous utterance (key k)", () => onstep(-1)),
      button("→", "Next utterance (key j)", () => onstep(1)),
      button("Close", "Close", () => dialog.close()),
    );
    const titles = make("div", "titles");
    titles.append(title, facts);
    head.append(titles, tools);
    dialog.append(head, body);
    document.body.append(dialog);
    // A click outside closes the dialog. A selection of text that ends outside does not.
    let pressed = null;
    dialog.addEventListener("pointerdown", (event) => { pressed = event.target; });
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog && pressed === dialog) dialog.close();
    });
    dialog.addEventListener("close", () => {
      empty();
      onclose();
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "j" || event.key === "k") onstep(event.key === "j" ? 1 : -1);
    });

    function empty() {
      state.player?.close();
      state.player = null;
      state.row = null;
      body.replaceChildren();
    }

    /* Describe a row. Each part has a separate element, because a name may be written from right to left. */
    function describe(row) {
      const parts = [row.subset, row.speaker === null ? "" : `speaker ${row.speaker}`, `${row.duration.toFixed(2)} s`];
      row.systems.forEach((system, index) => {
        const { substitutions: s, insertions: i, deletions: d, errors } = row.counts[index];
        const name = data.systems.length > 1 ? `${data.systems[index]}: ` : "";
        const kinds = errors ? ` (${s} substituted, ${i} inserted, ${d} deleted)` : "";
        const sure = system.confidence === null ? "" : `, confidence ${system.confidence.toFixed(2)}`;
        parts.push(`${name}${counted(errors, "error")}${kinds} in ${counted(row.words, "word")}${sure}`);
      });
      const shown = parts.filter(Boolean).map((part) => make("bdi", "", part));
      facts.replaceChildren(...shown.flatMap((part, index) => (index ? [" · ", part] : [part])));
    }

    function open(row) {
      empty();
      state.row = row;
      title.textContent = row.id;
      describe(row);
      const holder = make("div");
      body.append(holder);
      const alignment = Alignment(holder, {
        reference: row.reference,
        systems: row.systems.map((system, index) => ({ ...system, name: data.systems.length > 1 ? data.systems[index] : "hypothesis" })),
        onword: (system, index) => state.player?.jump(row.systems[system].times[2 * index], true),
      });
      const legend = make("p", "note legend");
      legend.append("Marked: ", make("span", "sub", "substituted"), " ", make("span", "ins", "inserted"), " ", make("span", "del", "deleted"));
      legend.append(row.audio ? ". A click on a word plays from there." : ".");
      body.append(legend);
      body.append(make("p", "note", `As written: ${row.text || "(nothing)"}`));
      addAudio(row, alignment);
      if (!dialog.open) dialog.showModal();
      dialog.scrollTop = 0;
      body.scrollTop = 0;
    }

    /* Show the recording below the words of a system. */
    function addAudio(row, alignment) {
      const [audio, levels, heard] = ["clip", "log-mel", "posterior"].map((kind) => attachment(`${kind}-${row.index}`));
      const problem = data.problems[row.index];
      if (!audio) body.append(make("p", "note", problem ? `No recording: ${problem}` : data.no_audio));
      const holder = make("div");
      const show = (system) => {
        state.player?.close();
        alignment.mark(system, -1); // remove the mark of the closed player
        state.player = Player(holder, {
          audio: audio ? new Blob([bytesOf(audio)], { type: "audio/ogg" }) : null,
          duration: row.duration,
          words: wordsOf(row.systems[system]),
          features: levels ? { ...data.features, levels: bytesOf(levels) } : null,
          posterior: heard ? Posterior({ ...data.posterior, ...data.segments[row.index] }, heard) : null,
          onword: (index) => alignment.mark(system, index),
        });
      };
      if (data.systems.length > 1) body.append(choice(row, show));
      body.append(holder);
      show(row.systems.length - 1);
    }

    /* Return buttons that choose the system whose words are above the waveform. */
    function choice(row, show) {
      const line = make("p", "note choice", "Words of "), last = row.systems.length - 1;
      const buttons = data.systems.map((name, system) => {
        const one = button(name, `Show the words of ${name}`, () => {
          show(system);
          buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === one)));
        });
        one.setAttribute("aria-pressed", String(system === last));
        line.append(one, " ");
        return one;
      });
      return line;
    }

    return {
      open,
      close() { if (dialog.open) dialog.close(); },
      get row() { return state.row; },
      get player() { return state.player; },
    };
  };
})();
