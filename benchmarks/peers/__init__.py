"""Conformer blocks of other toolkits, each behind the same face: made of a `Shape`, (B, T', D) and (B,) to (B, T', D).

Their `layers` are what is compiled. A toolkit that is not installed raises ImportError when its file is imported.
"""
