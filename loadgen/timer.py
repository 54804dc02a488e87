"""A timer that an event loop can watch: a Linux timerfd on CLOCK_MONOTONIC.

Event loops round their own timers to milliseconds (0.6 ms late on average); this one is some 20 µs late. The standard
library has it from Python 3.13 only, hence ctypes.
"""

import ctypes
import os
import time

from models.units import NS_PER_S

_TFD_TIMER_ABSTIME = 1
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Timer:
    """One-shot timer; `fileno` becomes readable when it is due. The owner must `close` it."""

    def __init__(self) -> None:
        self.fileno: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fileno < 0:
            raise OSError(ctypes.get_errno(), "cannot create a timerfd")
        self._spec = _Itimerspec()

    def arm(self, due_ns: int) -> None:
        """Fire at `due_ns` on CLOCK_MONOTONIC; at once when that is past."""
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(due_ns, NS_PER_S)
        if _libc.timerfd_settime(self.fileno, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None) != 0:
            raise OSError(ctypes.get_errno(), "cannot set a timerfd")

    def acknowledge(self) -> None:
        """Make `fileno` unreadable again."""
        os.read(self.fileno, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.fileno)
