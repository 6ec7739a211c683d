/* A sortable table of thousands of rows, which draws only the visible rows.

     const table = Table(element, {
       caption,     for screen readers
       columns,     [{key, label, title, width, from, number, value(row), text(row) or fill(cell, row), descending}]
                    width in rem (absent: the rest); from: minimum width of the table in rem to show the column;
                    number: right-aligned; descending: order of the first click
       address,     row -> its address "#...", for the link in the first column
       onsort,      called without arguments after the order has changed
     });
     table.rows = rows;              rows to show; they are sorted by the current column
     table.sort(key, descending)     table.order: the rows in their current order    table.focus(row)

   Keys on a row: up, down, page up, page down, home, end; enter and space follow its link. On paper, the first PRINTED
   rows are shown, with a note if there are more. */
"use strict";
const Table = (() => {
  const AROUND = 8; // rows drawn above and below the visible rows
  const PRINTED = 400; // maximum number of rows on paper
  const collator = new Intl.Collator(undefined, { numeric: true });

  function compare(a, b) {
    if (a === null || b === null) return (a === null) - (b === null);
    return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
  }

  return function (root, { caption, columns, address, onsort = () => {} }) {
    const state = { rows: [], columns, key: null, descending: false, active: 0, frame: 0, printing: false };
    const scroll = make("div", "rows"), table = make("table"), head = make("thead"), body = make("tbody");
    const headings = make("tr"), group = make("colgroup"), buttons = new Map();
    scroll.tabIndex = -1;
    table.append(make("caption", "hidden-text", caption), group, head, body);
    head.append(headings);
    scroll.append(table);
    const left = make("p", "note print-only");
    root.replaceChildren(scroll, left);
    const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);
    const height = () => 2.25 * rem();
    const fitting = () => columns.filter(({ from = 0 }) => scroll.clientWidth >= from * rem());
    const shown = () => state.columns;

    function layHead() {
      headings.replaceChildren();
      group.replaceChildren();
      buttons.clear();
      for (const column of shown()) {
        const heading = make("th", column.number ? "number" : ""), button = make("button", "", column.label);
        heading.scope = "col";
        button.type = "button";
        button.title = column.title ?? column.label;
        button.addEventListener("click", () => {
          sort(column.key, state.key === column.key ? !state.descending : Boolean(column.descending));
        });
        heading.append(button);
        headings.append(heading);
        buttons.set(column.key, heading);
        const wide = make("col");
        if (column.width) wide.style.width = `${column.width}rem`;
        group.append(wide);
      }
      markHead();
    }

    function markHead() {
      for (const [key, heading] of buttons) {
        if (key === state.key) heading.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
        else heading.removeAttribute("aria-sort");
      }
    }

    /* The sort is stable: equal rows stay in their previous order. */
    function arrange() {
      const column = columns.find(({ key }) => key === state.key);
      if (!column) return;
      const keyed = state.rows.map((row) => [column.value(row), row]);
      keyed.sort(([a], [b]) => (a === null || b === null ? compare(a, b) : state.descending ? compare(b, a) : compare(a, b)));
      state.rows = keyed.map(([, row]) => row);
    }

    function sort(key, descending) {
      state.key = key;
      state.descending = descending;
      arrange();
      state.active = 0;
      scroll.scrollTop = 0;
      markHead();
      draw();
      onsort();
    }

    function spacer(rows) {
      const row = make("tr", "spacer"), cell = make("td");
      row.setAttribute("aria-hidden", "true");
      cell.colSpan = shown().length;
      cell.style.height = `${rows * height()}px`;
      row.append(cell);
      return row;
    }

    function drawRow(index) {
      const row = state.rows[index], line = make("tr");
      line.setAttribute("aria-rowindex", String(index + 2));
      line.dataset.index = index;
      shown().forEach((column, place) => {
        const cell = make("td", column.number ? "number" : "");
        if (place === 0) {
          const link = make("a", "", column.text(row));
          link.href = address(row);
          link.tabIndex = index === state.active ? 0 : -1;
          link.title = column.text(row);
          cell.append(link);
        } else if (column.fill) {
          column.fill(cell, row);
        } else {
          cell.textContent = column.text(row);
        }
        line.append(cell);
      });
      return line;
    }

    function draw(first, last) {
      cancelAnimationFrame(state.frame);
      state.frame = 0;
      const count = state.rows.length, high = height();
      first ??= Math.max(0, Math.floor(scroll.scrollTop / high) - AROUND);
      last ??= Math.min(count, Math.ceil((scroll.scrollTop + scroll.clientHeight) / high) + AROUND);
      const focused = body.contains(document.activeElement) || document.activeElement === scroll;
      const lines = [];
      for (let index = first; index < last; index++) lines.push(drawRow(index));
      body.replaceChildren(spacer(first), ...lines, spacer(count - last));
      table.setAttribute("aria-rowcount", String(count + 1));
      scroll.classList.toggle("empty", !count);
      if (!lines.some((line) => line.dataset.index === String(state.active)) && lines.length) {
        lines[0].querySelector("a").tabIndex = 0; // so that the tab key reaches the table at any scroll position
      }
      if (focused) (linkOf(state.active) ?? scroll).focus({ preventScroll: true });
    }

    const linkOf = (index) => body.querySelector(`tr[data-index="${index}"] a`);

    function go(index) {
      if (!state.rows.length) return;
      state.active = Math.min(Math.max(index, 0), state.rows.length - 1);
      const top = state.active * height(), above = headings.offsetHeight;
      if (top < scroll.scrollTop) scroll.scrollTop = top;
      const bottom = top + height() + above - scroll.clientHeight;
      if (bottom > scroll.scrollTop) scroll.scrollTop = bottom;
      draw();
      (linkOf(state.active) ?? scroll).focus({ preventScroll: true });
    }

    scroll.addEventListener("scroll", () => { state.frame ||= requestAnimationFrame(() => draw()); });
    body.addEventListener("focusin", (event) => {
      const line = event.target.closest("tr");
      if (line) state.active = Number(line.dataset.index);
    });
    body.addEventListener("click", (event) => {
      const line = event.target.closest("tr[data-index]");
      if (!line || event.target.closest("a") || String(getSelection())) return;
      line.querySelector("a").click();
    });
    scroll.addEventListener("keydown", (event) => {
      if (!body.contains(event.target) && event.target !== scroll) return;
      const page = Math.max(1, Math.floor(scroll.clientHeight / height()) - 2), at = state.active;
      const to = {
        ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: Infinity,
      }[event.key];
      if (to !== undefined) go(to);
      else if (event.key === " ") linkOf(at)?.click();
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => {
      if (state.printing) return; // on paper every drawn row is visible, so ever more rows would be drawn
      const now = fitting();
      if (now.length !== state.columns.length) {
        state.columns = now;
        layHead();
      }
      draw();
    }).observe(scroll);
    addEventListener("beforeprint", () => {
      const count = state.rows.length, printed = Math.min(count, PRINTED);
      left.textContent = count > printed ? `The first ${printed} of ${count.toLocaleString("en")} rows; the screen shows all.` : "";
      state.printing = true;
      draw(0, printed);
    });
    addEventListener("afterprint", () => {
      state.printing = false;
      draw();
    });
    state.columns = fitting();
    layHead();

    return {
      sort,
      get order() { return state.rows; },
      set rows(rows) {
        state.rows = rows.slice();
        arrange();
        state.active = 0;
        scroll.scrollTop = 0;
        draw();
      },
      focus(row) {
        const index = state.rows.indexOf(row);
        if (index >= 0) go(index);
      },
    };
  };
})();
