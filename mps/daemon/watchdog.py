"""Restarts an MPS daemon that ends or hangs: without a daemon, clients would silently run without MPS."""

import os
import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from sluice.models.errors import ControlFailed
from sluice.mps.daemon.channel import TIMEOUT_S, NoAnswer
from sluice.mps.daemon.daemon import MpsDaemon
from sluice.mps.isolation.back_off import BackOff

HEARTBEAT_S = 15.0
"""Interval between two probes of a daemon."""

_PROBES = 2
"""Consecutive probes that may go unanswered; then the daemon counts as lost."""
_LOOK_S = 1.0


class MpsWatchdog:
    """Starts a daemon, and restarts it when it ends or hangs, on a thread of its own, with which the daemon ends.

    The daemon is probed every `heartbeat_s` and must answer within `answer_s`. `report` is called on that thread with
    a sentence whenever the daemon is lost, runs again or cannot be started.
    """

    def __init__(
        self,
        daemon: MpsDaemon,
        report: Callable[[str], None],
        heartbeat_s: float = HEARTBEAT_S,
        answer_s: float = TIMEOUT_S,
    ) -> None:
        self._daemon = daemon
        self._report = report
        self._heartbeat_s = heartbeat_s
        self._answer_s = answer_s
        self._started: Future[None] = Future()
        self._stopping = os.eventfd(0, os.EFD_CLOEXEC)
        self._waiting = select.poll()
        self._waiting.register(self._stopping, select.POLLIN)
        self._thread = threading.Thread(target=self._run, name=f"mps-{daemon.device}", daemon=True)

    def start(self) -> None:
        """Return when the daemon answers; raises ControlFailed when its first start fails."""
        self._thread.start()
        self._started.result()

    def stop(self) -> None:
        """Stop the daemon and the thread."""
        os.eventfd_write(self._stopping, 1)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._stopping)

    def _run(self) -> None:
        try:
            self._daemon.start()
        except BaseException as error:
            self._started.set_exception(error)
            return
        self._started.set_result(None)
        back_off = BackOff()
        back_off.ready(time.monotonic())
        while why := self._lost():
            self._report(f"the MPS daemon of {self._daemon.device} {why}; restarting it")
            if not self._restart(back_off):
                break
        self._daemon.stop()

    def _restart(self, back_off: BackOff) -> bool:
        """Try until the daemon runs; returns False when the watchdog is to stop."""
        while not self._stop_requested(back_off.lost(time.monotonic())):
            try:
                self._daemon.restart()
            except (ControlFailed, OSError) as error:
                self._report(str(error))
            else:
                back_off.ready(time.monotonic())
                self._report(f"the MPS daemon of {self._daemon.device} runs again (pid {self._daemon.pid})")
                return True
        return False

    def _lost(self) -> str:
        """Wait until the daemon has ended or hangs; returns the reason, "" when the watchdog is to stop."""
        while (pid := self._daemon.pid) is not None:
            try:
                descriptor = os.pidfd_open(pid)
            except OSError:  # the daemon has just ended, or too many files are open
                if self._stop_requested(_LOOK_S):
                    return ""
                continue
            self._waiting.register(descriptor, select.POLLIN)
            ready = dict(self._waiting.poll(self._heartbeat_s * 1000))
            self._waiting.unregister(descriptor)
            os.close(descriptor)
            if self._stopping in ready:
                return ""
            if not ready:
                self._daemon.truncate_logs()
                if not self._answers():
                    return "does not answer"
        return "" if self._stop_requested(0) else "has ended"

    def _answers(self) -> bool:
        """Return whether the daemon answers; one answer may be late, on a busy machine."""
        for _ in range(_PROBES):
            try:
                self._daemon.probe(self._answer_s)
            except NoAnswer:
                if self._stop_requested(0):
                    return True
            except ControlFailed:  # the daemon refuses, so it is alive, or it has just ended
                return True
            else:
                return True
        return False

    def _stop_requested(self, seconds: float) -> bool:
        return bool(self._waiting.poll(seconds * 1000))
