"""Parts of the pages: style, charts, scripts, and how they become one file."""
