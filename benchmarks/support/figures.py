"""Figures of a benchmark that is a command, with their goals."""

from collections.abc import Iterable
from typing import NamedTuple


class Figure(NamedTuple):
    """A line of a table; a figure without a goal meets it."""

    what: str
    value: str
    goal: str = ""
    met: bool = True


def show(label: str, figures: Iterable[Figure]) -> bool:
    """Print figures as they come; returns False if one of them misses its goal."""
    all_met = True
    for what, value, goal, met in figures:
        print(f"{label:<11}{what:<40}{value:<44}{goal:<15}{'' if met else 'MISSED'}".rstrip(), flush=True)
        all_met = all_met and met
    return all_met
