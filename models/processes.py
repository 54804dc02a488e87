"""Processes of this machine as `/proc` shows them, and what the Python processes that Sluice starts have in common."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import sluice

IMPORT_ROOT = str(Path(sluice.__file__).parents[1])
"""The directory that the package `sluice` is imported from: `site-packages`, or `src` in a clone of the repository."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
"""The signals that stop a server."""
UNUSED_SIGNALS = (
    *(signal.SIGUSR2, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGIO, signal.SIGPWR, signal.SIGSTKFLT),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
"""Signals that mean nothing to a server, and would end it if they were not handled."""
SERVICE_SIGNALS = (*STOP_SIGNALS, signal.SIGHUP, signal.SIGUSR1, *UNUSED_SIGNALS)
"""All signals to a service that would end a process; a service manager may send them to all of its processes."""

_PROC = Path("/proc")


TELEMETRY_OFF = {"ORT_DISABLE_TELEMETRY": "1"}
"""The variable that keeps ONNX Runtime from reporting to its makers; it must be set before the library starts."""


def python_path() -> str:
    """Return the PYTHONPATH of a process that runs a module of Sluice."""
    return os.pathsep.join(filter(None, (IMPORT_ROOT, os.environ.get("PYTHONPATH"))))


def module_environment() -> dict[str, str]:
    """The environment of a process that runs a module of Sluice, and in it perhaps a model."""
    return os.environ | TELEMETRY_OFF | {"PYTHONPATH": python_path()}


def leave_signals_to_gateway() -> None:
    """Have this process outlive the signals to a service: the gateway has it end when its batches are done.

    Programs that it starts, and processes that it forks, have the default handling of signals.
    """
    for number in SERVICE_SIGNALS:
        signal.signal(number, _outlive)
        signal.siginterrupt(number, False)
    os.register_at_fork(before=_hold_signals, after_in_parent=_release_signals, after_in_child=_restore_defaults)


def _outlive(*_: object) -> None:
    pass


_masks = threading.local()
"""The signals that a thread had blocked before it forked."""


def _hold_signals() -> None:
    """A signal to a process that has just been forked waits until its handlers are the default ones."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, SERVICE_SIGNALS)


def _release_signals() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _restore_defaults() -> None:
    for number in SERVICE_SIGNALS:
        if signal.getsignal(number) is _outlive:
            signal.signal(number, signal.SIG_DFL)
    _release_signals()


def process_tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants, as far as the kernel lists them."""
    yield pid
    if pid == os.getpid() and not _has_children():
        return
    for tid in threads_of(pid):
        try:
            children = (_PROC / str(pid) / "task" / str(tid) / "children").read_text(encoding="ascii").split()
        except OSError:  # the thread has just ended
            continue
        for child in children:
            yield from process_tree(int(child))


def threads_of(pid: int) -> list[int]:
    """Return the thread ids of a process; a process that has ended has none."""
    try:
        return [int(name) for name in os.listdir(_PROC / str(pid) / "task")]
    except OSError:
        return []


def process_name(pid: int) -> str:
    """Return a process as messages name it, for example `python (pid 4242)`."""
    try:
        return f"{(_PROC / str(pid) / 'comm').read_text(encoding='utf-8').strip()} (pid {pid})"
    except OSError:  # the process has ended, or is in another namespace
        return f"pid {pid}"


def _has_children() -> bool:
    """Return whether this process has children; asking each of thousands of threads is slow."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
