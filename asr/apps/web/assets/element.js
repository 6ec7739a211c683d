/* make(tag, className, text): returns an element; class and text are optional. */
"use strict";
function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.textContent = text;
  return element;
}
