// What the theme's pages lack: a name for the search's dialog, and wide tables that the keyboard can scroll.
"use strict";
{
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  document.querySelector(".md-search").setAttribute("aria-label", "Search");
  document$.subscribe(() => {
    for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) observer.observe(table);
  });
}
