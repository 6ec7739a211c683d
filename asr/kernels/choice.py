"""Whether an operation must use its plain form, and the widest floating-point type of a device."""

import torch


def wants_plain() -> bool:
    """Whether a program is being exported, traced or compiled; this requires the plain forms.

    Other forms loop over blocks whose number depends on the shapes, so their programs would fit only one shape.
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def exact(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device; Apple's MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
