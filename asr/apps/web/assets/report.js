/* The utterances of a report: their table, its filters, and the address of the open utterance.

   Reads the JSON element "report", which asr/apps/report/evaluation.py writes:
     systems     names of the models: one in an evaluation, two in a comparison
     rows        [{id, subset, speaker, duration, text, reference, systems: [{hypothesis, edits, times, confidence}]}];
                 edits: as in alignment.js; times: start and end of each word, in seconds
     features, posterior, segments, problems, no_audio    used by detail.js
   The page has the elements #filters, #found and #utterances. An utterance's address is #utterance=ID, with &subset=NAME
   if there are several subsets; the names of attachments contain the row's number. */
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report").textContent);
  const pair = data.systems.length > 1, filters = document.getElementById("filters");
  const found = document.getElementById("found");

  function count(edits) {
    const counts = { substitutions: 0, insertions: 0, deletions: 0 };
    for (const kind of edits) {
      if (kind === "S") counts.substitutions++;
      else if (kind === "I") counts.insertions++;
      else if (kind === "D") counts.deletions++;
    }
    return { ...counts, errors: counts.substitutions + counts.insertions + counts.deletions };
  }

  const rate = (errors, words) => (words ? errors / words : errors ? Infinity : 0);
  const percent = (share) => (share === null ? "-" : share === Infinity ? "∞" : `${(100 * share).toFixed(1)} %`);
  const signed = (number) => (number > 0 ? `+${number}` : number < 0 ? `−${-number}` : "0");

  const rows = data.rows.map((row, index) => {
    row.index = index;
    row.words = row.reference ? row.reference.split(" ").length : 0;
    row.counts = row.systems.map(({ edits }) => count(edits));
    row.searched = [row.id, row.reference, ...row.systems.map(({ hypothesis }) => hypothesis)].join("\n").toLowerCase();
    row.change = pair ? row.counts[1].errors - row.counts[0].errors : 0;
    row.audio = index in data.clips ? 1 : 0;
    return row;
  });
  const subsets = [...new Set(rows.map(({ subset }) => subset))];
  const speakers = [...new Set(rows.map(({ speaker }) => speaker).filter((name) => name !== null))];

  function addressOf(row) {
    const found = new URLSearchParams({ utterance: row.id });
    if (subsets.length > 1) found.set("subset", row.subset);
    return `#${found}`;
  }

  const number = (key, label, width, value, more = {}) =>
    ({ key, label, width, number: true, descending: true, value, text: (row) => String(value(row)), ...more });
  const text = (key, label, width, value, more = {}) =>
    ({ key, label, width, value, text: (row) => value(row) ?? "-", ...more });
  const MIDDLE = 40, WIDE = 64; // rem; the dialog shows the other columns
  const errors = (row) => row.counts[0].errors, wer = (row) => rate(errors(row), row.words);
  const confidence = (row) => row.systems[0].confidence;

  const ofOne = [
    number("substitutions", "Sub.", 3.8, (row) => row.counts[0].substitutions, { title: "Substitutions", from: WIDE }),
    number("insertions", "Ins.", 3.8, (row) => row.counts[0].insertions, { title: "Insertions", from: WIDE }),
    number("deletions", "Del.", 3.8, (row) => row.counts[0].deletions, { title: "Deletions", from: WIDE }),
    number("errors", "Errors", 5, errors),
    number("wer", "WER", 5.2, wer, { title: "Word error rate", text: (row) => percent(wer(row)), from: MIDDLE }),
    number("confidence", "Conf.", 4.2, confidence, {
      title: "Mean confidence of the words", text: (row) => confidence(row)?.toFixed(2) ?? "-", from: WIDE,
    }),
  ];
  const ofTwo = [
    number("a", "A", 3.8, errors, { title: "Errors of A", from: MIDDLE }),
    number("b", "B", 3.8, (row) => row.counts[1].errors, { title: "Errors of B", from: MIDDLE }),
    number("change", "Change", 5.4, (row) => row.change, {
      title: "Errors of B minus those of A", text: (row) => signed(row.change),
    }),
  ];
  const marked = text("text", "Hypothesis, errors marked", undefined, (row) => row.systems[0].hypothesis, {
    fill(cell, row) {
      cell.dir = "auto";
      Alignment.inline(cell, row.reference, row.systems[0]);
    },
  });
  const columns = [
    text("id", "Utterance", innerWidth < 640 ? 7 : 9.5, (row) => row.id),
    ...(subsets.length > 1 ? [text("subset", "Subset", 7, (row) => row.subset, { from: MIDDLE })] : []),
    ...(speakers.length ? [text("speaker", "Speaker", 7, (row) => row.speaker, { from: MIDDLE })] : []),
    number("duration", "Seconds", 5, (row) => row.duration, { text: (row) => row.duration.toFixed(1), from: MIDDLE }),
    number("words", "Words", 4.4, (row) => row.words, { title: "Words of the reference", from: WIDE }),
    ...(pair ? ofTwo : ofOne),
    number("audio", "Audio", 4.2, (row) => row.audio, { text: (row) => (row.audio ? "yes" : ""), from: WIDE }),
    pair ? text("text", "Reference", undefined, (row) => row.reference) : marked,
  ];

  const detail = Detail({
    data,
    onclose() {
      if (location.hash) history.pushState(null, "", location.pathname + location.search);
      if (opened) table.focus(opened);
      opened = null;
    },
    onstep(by) {
      const order = table.order, next = order[order.indexOf(detail.row) + by];
      if (next) location.replace(addressOf(next));
    },
  });
  let opened = null;

  const table = Table(document.getElementById("utterances"), {
    caption: "Utterances",
    columns,
    address: addressOf,
  });

  /* Filters; `choose` shows the rows that pass all of them. */
  const control = (name) => filters.elements[name];
  const KINDS = {
    substitutions: (row) => row.counts.some((one) => one.substitutions),
    insertions: (row) => row.counts.some((one) => one.insertions),
    deletions: (row) => row.counts.some((one) => one.deletions),
    none: (row) => row.counts.every((one) => !one.errors),
    better: (row) => row.change < 0,
    worse: (row) => row.change > 0,
    same: (row) => row.change === 0,
    audio: (row) => row.audio,
  };

  function choose() {
    const sought = control("search").value.trim().toLowerCase(), kind = KINDS[control("kind").value];
    const subset = control("subset")?.value, speaker = control("speaker")?.value, least = Number(control("least").value) || 0;
    const chosen = rows.filter((row) =>
      (!sought || row.searched.includes(sought)) &&
      (!kind || kind(row)) &&
      (!subset || subsets[subset - 1] === row.subset) &&
      (!speaker || speakers[speaker - 1] === row.speaker) &&
      Math.max(...row.counts.map((one) => one.errors)) >= least);
    table.rows = chosen;
    const words = chosen.reduce((sum, row) => sum + row.words, 0);
    const rates = data.systems.map((name, system) => {
      const wrong = chosen.reduce((sum, row) => sum + row.counts[system].errors, 0);
      return `${pair ? `${name}: ` : ""}${wrong.toLocaleString("en")} errors, WER ${percent(rate(wrong, words))}`;
    });
    const of = chosen.length === rows.length ? "" : ` of ${rows.length.toLocaleString("en")}`;
    found.textContent =
      `${chosen.length.toLocaleString("en")}${of} utterances, ${words.toLocaleString("en")} words; ${rates.join("; ")}`;
  }

  function fillChoices(name, values) {
    values.forEach((value, index) => control(name)?.append(new Option(value, String(index + 1))));
  }

  function follow() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    const row = rows.find(({ id, subset }) =>
      id === wanted.get("utterance") && (!wanted.has("subset") || subset === wanted.get("subset")));
    if (!row) {
      detail.close();
      if (wanted.has("utterance")) found.textContent = `There is no utterance ${wanted.get("utterance")} in this page.`;
      return;
    }
    opened = row;
    if (detail.row !== row) detail.open(row);
  }

  fillChoices("subset", subsets);
  fillChoices("speaker", speakers);
  filters.addEventListener("input", choose);
  filters.addEventListener("submit", (event) => event.preventDefault());
  filters.addEventListener("reset", () => setTimeout(choose));
  if (pair) rows.sort((one, other) => Math.abs(other.change) - Math.abs(one.change)); // largest change first, better or worse
  else table.sort("errors", true);
  choose();
  addEventListener("hashchange", follow);
  // The recordings are in the page after this script, so wait until the page is loaded.
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", follow);
  else follow();
})();
