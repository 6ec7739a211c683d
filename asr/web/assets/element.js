/* make(tag, className, text): an element; its class and its text may be left out. */
"use strict";
function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
