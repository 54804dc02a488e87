"""A timer of microsecond precision (Linux timerfd).

An event loop's own timers fire up to a millisecond late, or early.
"""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable

from sluice.models.units import NS_PER_S

_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("due_s", ctypes.c_long),
        ("due_ns", ctypes.c_long),
    )


class Alarm:
    """A timerfd on CLOCK_MONOTONIC that the running loop watches."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = _create()
        self._callback: Callable[[], None] | None = None

    def start(self, callback: Callable[[], None]) -> None:
        """Start watching; `callback` is called on the loop when the alarm fires."""
        self._callback = callback
        self._loop.add_reader(self._fd, self._expired)

    def arm(self, due_ns: int | None) -> None:
        """Set the alarm to an absolute time, replacing an earlier setting; None disarms it."""
        _settime(self._fd, 0 if due_ns is None else max(due_ns, 1))

    def close(self) -> None:
        """Disarm the alarm and free its descriptor."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # The alarm was armed again after the loop saw it fire.
        assert self._callback is not None
        self._callback()


if sys.version_info >= (3, 13):

    def _create() -> int:
        return os.timerfd_create(_CLOCK_MONOTONIC, flags=os.TFD_NONBLOCK | os.TFD_CLOEXEC)

    def _settime(fd: int, due_ns: int) -> None:
        os.timerfd_settime_ns(fd, flags=os.TFD_TIMER_ABSTIME, initial=due_ns)

else:
    _libc = ctypes.CDLL(None, use_errno=True)

    def _create() -> int:
        fd: int = _libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        return fd

    def _settime(fd: int, due_ns: int) -> None:
        setting = _Itimerspec(0, 0, *divmod(due_ns, NS_PER_S))
        if _libc.timerfd_settime(fd, _ABSOLUTE, ctypes.byref(setting), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")
