"""Signals that stop a training run, which then completes its step, saves, and exits with 128 + the signal's number."""

import logging
import os
import signal
import subprocess
from types import FrameType
from typing import Any

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # Ctrl-C; a scheduler; SLURM's --signal=USR1@120


class Stopped(Exception):  # noqa: N818  # not an error
    """Raised when a signal has stopped the training.

    Args:
        signum: number of the signal.
        where: position of the run, such as "at step 7 of 20"; "" where it is unknown.
    """

    def __init__(self, signum: int, where: str = "") -> None:
        super().__init__(" ".join(filter(None, (f"stopped by {signal.Signals(signum).name}", where))))
        self.signum = signum

    @property
    def status(self) -> int:
        """Exit status by the convention of shells: 128 + signal number."""
        return 128 + self.signum


class StopRequest:
    """A request to stop, made by a signal. The signal's handler only stores the signal's number.

    Args:
        speaks: whether to print a message; True in one process only.
    """

    def __init__(self, speaks: bool) -> None:
        self.signum = 0  # 0: no signal yet
        self.at_once = False
        self._speaks = speaks
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Install the signal handlers."""
        self._before = {signum: signal.signal(signum, self._note) for signum in SIGNALS}

    def give_back(self) -> None:
        """Restore the previous signal handlers; SIGINT stays ignored after a request to stop immediately."""
        for signum, handler in self._before.items():
            if not (self.at_once and signum == signal.SIGINT):
                signal.signal(signum, handler)
        self._before = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum and signum == signal.SIGINT:
            self.at_once = True
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a third Ctrl-C would interrupt the cleanup
            raise Stopped(signum)  # the second Ctrl-C
        speaks, self.signum = self._speaks and not self.signum, signum
        name = signal.Signals(signum).name
        if speaks:
            text = f"{name}: saving and stopping at the end of this step or validation; Ctrl-C to stop at once\n"
            os.write(2, text.encode())  # not by the logger, which may be writing a line at this moment


def requeue(stopped: Stopped) -> None:
    """Requeue the SLURM job of this process, if there is one; the job's next start resumes the run."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None or stopped.signum == signal.SIGINT:  # Ctrl-C
        return
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    try:
        shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True, check=False)
        if "JobState=CANCELLED" in shown.stdout:  # the SIGTERM came from scancel
            return
        answer = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True, check=False)
        problem = answer.stderr.strip() if answer.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        logger.error("SLURM job %s could not be requeued: %s", job, problem)
    else:
        logger.info("SLURM job %s is requeued", job)
