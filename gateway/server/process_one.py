"""Process 1 of a container: it hands signals on to the server, and takes the exits of processes that have lost theirs.

The kernel makes process 1 the parent of every process whose own parent has ended, such as those that a Python model
started in the background. Nobody else can take their exits, and without that they count against `pids.max` for ever.
"""

import os
import signal

from sluice.models.processes import SERVICE_SIGNALS


def go_on_as_child() -> int | None:
    """Fork if this is process 1: the child goes on, and gets None. Process 1 gets the child's status when it has ended.

    The status is as shells define it: 128 and the number of the signal for a child that a signal has ended.
    """
    if os.getpid() != 1:
        return None
    watched = {*SERVICE_SIGNALS, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    while True:
        arrived = signal.sigwaitinfo(watched)
        if arrived.si_signo == signal.SIGCHLD:
            if (status := _take_exits(child)) is not None:
                return status
        elif arrived.si_code <= 0:  # sent by a process: what a terminal sends has reached the child as well
            os.kill(child, arrived.si_signo)


def _take_exits(server: int) -> int | None:
    """Take the exits of all children that have ended; returns the status of the server if it is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == server:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            return None
