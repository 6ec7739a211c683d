"""Signals that ask a training to stop: it finishes its step, saves, and ends with a status that says so."""

import logging
import os
import signal
import subprocess
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Ctrl-C; a scheduler; SLURM's --signal=USR1@120


class Stopped(Exception):  # noqa: N818  # no error: what was asked for
    """A training that a signal has stopped."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def status(self) -> int:
        """The exit status, as shells count it."""
        return 128 + self.signum


class StopRequest:
    """Whether a signal has asked to stop: the handler notes it and does nothing else, wherever it comes.

    Args:
        speaks: whether to say so; one of the processes should.
    """

    def __init__(self, speaks: bool) -> None:
        self.signum = 0  # none yet
        self.at_once = False
        self._speaks = speaks
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Take the signals."""
        self._before = {signum: signal.signal(signum, self._note) for signum in SIGNALS}

    def give_back(self) -> None:
        """Leave the signals to whoever had them before; an end that was asked for at once is not disturbed."""
        for signum, handler in self._before.items():
            if not (self.at_once and signum == signal.SIGINT):
                signal.signal(signum, handler)
        self._before = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum and signum == signal.SIGINT:
            self.at_once = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third would be raised in the middle of the end
            raise Stopped(signum)  # asked twice
        speaks, self.signum = self._speaks and not self.signum, signum
        name = signal.Signals(signum).name
        if speaks:
            text = f"{name}: saving and stopping at the end of this step or validation; Ctrl-C to stop at once\n"
            os.write(2, text.encode())  # a log may be in the middle of a line


def requeue(stopped: Stopped) -> None:
    """Ask SLURM, where it runs this job, to put it in its queue again; the next start resumes where this one saved."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or stopped.signum == signal.SIGINT:  # a person's
        return
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)
        if "JobState=CANCELLED" in shown.stdout:  # scancel's SIGTERM: nobody wants it again
            return
        answer = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
        problem = answer.stderr.strip() if answer.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        logger.error("SLURM job %s could not be put in the queue again: %s", job, problem)
    else:
        logger.info("SLURM job %s is in the queue again", job)
