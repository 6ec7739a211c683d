"""Which form of an operation runs, and in which precision where that hangs on the device."""

import torch


def wants_plain() -> bool:
    """Tell whether a program is being written down (exported, traced, compiled), which is for the plain forms.

    The others loop over blocks whose number follows from the shapes: a program of theirs would be for one shape alone.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def exact(device: torch.device) -> torch.dtype:
    """The widest floats of a device: Apple's MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
