/* A reference over one or more hypotheses, word by word, in columns that wrap like text.

     const alignment = Alignment(element, {
       reference,    its words, separated by single spaces
       systems,      [{name, hypothesis, edits}]: edits is a letter for each step of the alignment, "=" equal,
                     "S" substitution, "I" insertion, "D" deletion
       onword,       called with (system, index) of a hypothesis's word when it is clicked
     });
     alignment.mark(system, index)    marks the word that is being spoken; -1: none
     Alignment.inline(element, reference, system)    shows an alignment on one line, as running text

   Classes sub, ins and del of style.css mark the errors. The words are buttons; arrow keys go from one to the next. */
"use strict";
const Alignment = (() => {
  const CLASS = { "=": "", S: "sub", I: "ins", D: "del" };
  const split = (text) => (text ? text.split(" ") : []);

  /* Return the inserted words before each reference word and after the last, and the result for each reference word. */
  function walk(edits) {
    const inserted = [[]], heard = [];
    let index = 0;
    for (const kind of edits) {
      if (kind === "I") {
        inserted.at(-1).push({ kind, index: index++ });
      } else {
        heard.push({ kind, index: kind === "D" ? -1 : index++ });
        inserted.push([]);
      }
    }
    return { inserted, heard };
  }

  /* Return columns [{word, cells}]: word is a reference word or null; cells has {kind, index} or null per system. */
  function columns(reference, systems) {
    const walks = systems.map(({ edits }) => walk(edits)), found = [];
    for (let place = 0; place <= reference.length; place++) {
      const most = Math.max(...walks.map(({ inserted }) => inserted[place].length));
      for (let k = 0; k < most; k++) {
        found.push({ word: null, cells: walks.map(({ inserted }) => inserted[place][k] ?? null) });
      }
      if (place < reference.length) {
        found.push({ word: reference[place], cells: walks.map(({ heard }) => heard[place]) });
      }
    }
    return found;
  }

  function said(word, kind, reference) {
    if (kind === "S") return `${word}, instead of ${reference}`;
    return kind === "I" ? `${word}, inserted` : word;
  }

  function build(root, { reference, systems, onword }) {
    const words = split(reference), hypotheses = systems.map(({ hypothesis }) => split(hypothesis));
    const buttons = systems.map(() => []), order = systems.map(() => []);
    root.replaceChildren();
    root.classList.add("alignment");
    root.dir = "auto";
    const names = make("div", "column names", "");
    names.dir = "ltr"; // so that only the words determine the direction of text
    names.append(make("span", "cell", "reference"), ...systems.map(({ name }) => make("span", "cell", name)));
    root.append(names);
    for (const { word, cells } of columns(words, systems)) {
      const column = make("div", "column", "");
      const gone = cells.every((cell) => cell && cell.kind === "D");
      const top = make("span", "cell", "");
      top.append(word === null ? make("span", "nothing", "+") : make("span", gone ? "del" : "", word));
      column.append(top);
      cells.forEach((cell, system) => {
        const holder = make("span", "cell", "");
        if (!cell || cell.index < 0) {
          const nothing = make("span", cell ? "nothing del" : "nothing", cell ? "–" : "·");
          if (cell) nothing.append(make("span", "hidden-text", ` ${word} deleted`));
          holder.append(nothing);
        } else {
          const text = hypotheses[system][cell.index];
          const one = make("button", CLASS[cell.kind], text);
          one.type = "button";
          one.tabIndex = buttons[system].length ? -1 : 0;
          if (cell.kind !== "=") one.setAttribute("aria-label", said(text, cell.kind, word));
          one.addEventListener("click", () => onword(system, cell.index));
          one.addEventListener("keydown", (event) => rove(event, order[system], one));
          buttons[system][cell.index] = one;
          order[system].push(one);
          holder.append(one);
        }
        column.append(holder);
      });
      root.append(column);
    }
    return {
      mark(system, index) {
        for (const one of root.querySelectorAll(".now")) one.classList.remove("now");
        buttons[system]?.[index]?.classList.add("now");
      },
    };
  }

  build.inline = (root, reference, { hypothesis, edits }) => {
    const words = split(reference), heard = split(hypothesis);
    let place = 0, index = 0, plain = "";
    const flush = () => { if (plain) root.append(plain); plain = ""; };
    for (const kind of edits) {
      const word = kind === "D" ? words[place] : heard[index];
      if (kind !== "I") place++;
      if (kind !== "D") index++;
      if (kind === "=") {
        plain += `${word} `;
      } else {
        flush();
        root.append(make("span", CLASS[kind], word), " ");
      }
    }
    flush();
  };
  return build;
})();
