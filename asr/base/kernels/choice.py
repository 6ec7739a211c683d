"""Whether an operation must use its plain form, and the widest floating-point type of a device."""

import torch


def wants_plain() -> bool:
    """Whether a program for all shapes is being made: exported, traced or compiled.

    It cannot loop over blocks whose number depends on the shapes. A compiled program may use the kernels of its device;
    an exported one may not (`is_compiled`).
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_compiled() -> bool:
    """Whether torch.compile is making the program, so that it will run on the device of its inputs.

    `torch.compiler.is_exporting` is True here, too; a non-strict torch.export, as ours, makes only this function False.
    """
    return torch.compiler.is_dynamo_compiling()


def exact(device: torch.device) -> torch.dtype:
    """Return the widest floating-point type of a device; Apple's MPS has no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
