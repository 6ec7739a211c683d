"""Optimised operations, each with a plain form that follows the equation of its paper.

Each file has all forms of an operation, and the function that chooses between them. The choice depends on the device;
an exported program always has the plain form (`choice.py`).
"""
