"""Runs the same function for several arguments, each in a process."""

import multiprocessing
import signal
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


def as_they_end(
    function: Callable[[_Argument], _Result], arguments: Sequence[_Argument], processes: int
) -> Generator[tuple[int, _Result]]:
    """The results with the places of their arguments, as they end; at most `processes` run at a time.

    The function is one of a module. With one process, or for one argument, it runs in this one. A generator that is
    closed early, as by an interrupt, ends its processes. Raises BrokenProcessPool when one of them is lost.
    """
    if min(processes, len(arguments)) <= 1:
        for place, argument in enumerate(arguments):
            yield place, function(argument)
        return
    others = set(multiprocessing.active_children())
    # Processes start afresh: a fork would have the locks of threads that it lacks.
    pool = ProcessPoolExecutor(
        min(processes, len(arguments)), mp_context=multiprocessing.get_context("spawn"), initializer=_leave_interrupts
    )
    try:
        running = {pool.submit(function, argument): place for place, argument in enumerate(arguments)}
        for ended in as_completed(running):
            yield running[ended], ended.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()


def _leave_interrupts() -> None:
    """An interrupt at the terminal is for the parent, which ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
