"""What a callback must do: its state is stored in checkpoints, which are read without running code."""

import io
from pickle import PicklingError, UnpicklingError
from typing import Any

import torch

from asr.errors import InputError, reason_of


def check_state(name: str, callback: Any) -> None:
    """Check that a checkpoint can contain the state of a callback (`state_dict`), and that it is restored.

    Raises:
        InputError: the state has other types than plain ones and tensors, or is not restored.
    """
    must = f"callback={name}: state_dict must contain only plain types and tensors, as in a checkpoint"
    file, before = io.BytesIO(), callback.state_dict()
    try:
        torch.save(before, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    except (PicklingError, UnpicklingError, AttributeError, TypeError) as error:
        raise InputError(f"{must}; {type(error).__name__}: {reason_of(error)}.") from None
    if state:
        callback.load_state_dict(state)
