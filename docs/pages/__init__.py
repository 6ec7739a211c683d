"""The Markdown files of the site: documents of the repository, and reference pages made of settings and code."""
