"""A thread that computes with the network for all clients."""

import threading
from abc import ABC, abstractmethod

import torch


class ServingThread(ABC):
    """A thread that takes turns until it is stopped. Other threads add work while they hold `_changed`.

    Args:
        name: name of the thread.
        num_threads: number of threads for the network's computations; None: torch's default.
    """

    def __init__(self, name: str, num_threads: int | None) -> None:
        # Torch's default is read here, because another thread may change it before the new thread starts.
        self._num_threads = num_threads or torch.get_num_threads()
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread is running and accepts work."""
        return self._thread.is_alive() and not self._stopped

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, for at most `seconds`."""
        self._thread.join(seconds)

    @abstractmethod
    def stop(self) -> None:
        """Stop the thread; its unfinished work ends with StoppedError."""

    @abstractmethod
    def _turn(self) -> bool:
        """Wait for work and do it; return False when stopped. Runs in the thread."""

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)
        try:
            while self._turn():
                pass
        finally:  # also after an unexpected error, so that no client waits for a thread that has ended
            self.stop()
