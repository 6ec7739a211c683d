"""Hand-tuned operations, each with its plain form: the equation of its paper.

A file has both forms of an operation and the function that chooses between them: by device, and always the plain form
when a program is exported (`choice.py`).
"""
