"""The Markdown files of the site: documents of the repository, and reference pages generated from settings and code."""
