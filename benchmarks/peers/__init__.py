"""Conformer blocks and searches of other toolkits.

A function `blocks` makes a `Peer` from a `Shape`; the peer maps inputs (B, T', D) and lengths (B,) to encoder_out
(B, T', D). Option --compile compiles its `layers`. Importing a module raises ImportError if its toolkit is not
installed.
"""
