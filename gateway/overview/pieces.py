"""JSON in pieces: numbers rounded for people, lists that are cut to a number of bytes, and work in slices."""

from collections.abc import Generator, Iterable
from typing import NamedTuple, TypeVar

T = TypeVar("T")

Slices = Generator[None, None, None]
"""Work that is done in slices, between which the event loop may do other work."""
DIGITS = 4
MAX_TEXT = 300
"""Characters of a sentence."""


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """A number to that many significant digits."""
    return None if value is None else float(f"{value:.{digits}g}")


def at_once(work: Generator[None, None, T]) -> T:
    """Do work at once that can be done in slices; returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as ended:
            result: T = ended.value
            return result


class Cut(NamedTuple):
    """The beginning of a list as JSON, its length in bytes, and how many elements were left out."""

    json: bytes
    left_out: int


def cut(items: Iterable[bytes], room: int) -> Cut:
    """As many elements as fit into `room` bytes, in their order; each of `items` is the JSON of one."""
    taken: list[bytes] = []
    left_out = 0
    used = 2
    for item in items:
        used += len(item) + 1
        if used > room or left_out:
            left_out += 1
        else:
            taken.append(item)
    return Cut(b"[%b]" % b",".join(taken), left_out)
