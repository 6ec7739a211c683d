/* make(tag, className, text): returns an element; class and text are optional.
   rove(event, row, one): on an arrow key, Home or End, moves the focus from `one` of a row of elements to another. */
"use strict";
function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}

function rove(event, row, one) {
  const at = row.indexOf(one), forward = getComputedStyle(one).direction === "rtl" ? -1 : 1;
  const to = { ArrowRight: at + forward, ArrowLeft: at - forward, Home: 0, End: row.length - 1 }[event.key];
  if (to === undefined || !row[to]) return;
  event.preventDefault();
  event.stopPropagation();
  one.tabIndex = -1;
  row[to].tabIndex = 0;
  row[to].focus();
}
