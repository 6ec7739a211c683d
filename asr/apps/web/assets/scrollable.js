/* Makes elements that scroll reachable by the keyboard; not every browser does this by itself. */
"use strict";
{
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const scrolls = target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight;
      if (scrolls) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  for (const element of document.querySelectorAll("dd, td bdi, .table-scroll")) observer.observe(element);
}
