"""Devices that torch can use."""

import torch
from torch import Tensor

from asr.errors import InputError


def usable_device(device: str | torch.device, name: str) -> torch.device:
    """Check that torch can use a device on this machine.

    Args:
        device: such as "cpu", "cuda" or "cuda:1".
        name: name of the option or setting, for the message.

    Raises:
        InputError: torch cannot use the device.
    """
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].partition(". ")[0].rstrip(".")
        reason = "no such kind of device" if reason.startswith("Expected one of") else reason
        reason = "this torch does not support it" if reason.startswith("Could not run") else reason  # mps without a Mac
        raise InputError(f"{name} must be a device that torch can use here; got {str(device)!r}: {reason}.") from None
    return torch.device(device)


def answers_at_once(device: torch.device) -> bool:
    """Return whether results are available without a synchronisation, as on a CPU, which computes synchronously."""
    return device.type == "cpu"


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device, without waiting for the device where torch keeps the source until then."""
    return tensor.to(device, non_blocking=device.type == "cuda")
