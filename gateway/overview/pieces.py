"""JSON in pieces: numbers rounded for people, lists that are cut to a number of bytes, and work in slices."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

DIGITS = 4
MAX_TEXT = 300
"""Characters of a sentence."""


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """A number to that many significant digits."""
    return None if value is None else float(f"{value:.{digits}g}")


def exhaust(work: Iterator[None]) -> int:
    """Do all of some work at once that can be done in slices; returns their number."""
    return sum(1 for _ in work)


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
