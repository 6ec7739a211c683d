"""Components of the pages: style, charts, scripts, and their assembly into one file."""
