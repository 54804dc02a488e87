"""The progress of a run, while it goes on."""

from collections.abc import Callable
from typing import NamedTuple


class QueryCounts(NamedTuple):
    """Numbers of queries that have left and that have ended."""

    issued: int
    ended: int


Watch = Callable[[Callable[[], QueryCounts]], None]
"""Called when a run begins, with what gives its counts from then on, in any thread."""


def unwatched(counts: Callable[[], QueryCounts]) -> None:
    """Leave a run alone."""
