"""Hand-tuned operations, each beside its plain form: the equation as its paper writes it.

A file holds both forms of one operation and the function that chooses between them: by device, and the plain form
wherever a program is written down (`choice.py`).
"""
