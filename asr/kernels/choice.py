"""Which form of an operation runs."""

import torch


def wants_plain() -> bool:
    """Tell whether a program is being written down (exported, traced, compiled), which is for the plain forms.

    The others loop over blocks whose number follows from the shapes: a program of theirs would be for one shape alone.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()
