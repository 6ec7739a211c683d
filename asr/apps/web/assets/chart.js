/* Charts: shows the values of a mark beside the pointer, or where a finger taps.

   A mark is any element of a chart's SVG with a <title>, as chart.py writes them. Without this script the browser's own
   tooltip shows them, later. */
"use strict";
(() => {
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true"); // the values are in the table below each chart
  document.body.append(tip);
  for (const title of document.querySelectorAll("figure.chart svg title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove(); // otherwise the browser shows it too
  }
  const show = (event) => {
    const mark = event.target.closest && event.target.closest("[data-tip]");
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    const { width, height } = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 12, innerWidth - width - 8);
    const top = event.clientY - height - 10;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${top < 8 ? event.clientY + 16 : top}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);
})();
