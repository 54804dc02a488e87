"""Units: the core counts integer nanoseconds, people write milliseconds, or a number with its unit."""

import re
from collections.abc import Mapping
from typing import NamedTuple

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
INFINITE_NS = 1 << 62
"""Stands for a time that never comes; sums with other times stay within 64 bits."""

_KIB = 1 << 10
_TIMES = {
    "ns": 1,
    "us": NS_PER_US,
    "µs": NS_PER_US,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "min": 60 * NS_PER_S,
    "h": 3600 * NS_PER_S,
}
_SIZES = {"B": 1, "KiB": _KIB, "MiB": _KIB**2, "GiB": _KIB**3, "TiB": _KIB**4}
_WITH_UNIT = re.compile(r"([0-9][0-9_]{0,30}(?:\.[0-9]{0,30})?)[ ]?([A-Za-zµ]{0,12})")


class Unit(NamedTuple):
    """The unit of a setting: the units that a text may have, and how many of their base are one of the setting."""

    units: Mapping[str, int]
    per_unit: int
    example: str
    name: str

    def number(self, text: str) -> float:
        """The number of a text such as `50ms` in this unit; ValueError, with what was expected, for any other text.

        A text without a unit is a number in this unit.
        """
        match = _WITH_UNIT.fullmatch(text.strip())
        if match is None or (match[2] and match[2] not in self.units):
            given = "" if match is None else match[2].lower()
            near = next((each for each in self.units if each.lower().replace("i", "") == given), None)
            hint = "" if match is None or near is None else f"; did you mean '{match[1]}{near}'?"
            raise ValueError(
                f"expected a number of {self.name}, or one with its unit ({', '.join(self.units)}) such as "
                f"{self.example}, got '{text:.80}'{hint}"
            )
        number = float(match[1])
        if not match[2]:
            return int(number) if number.is_integer() else number
        scaled = number * self.units[match[2]] / self.per_unit
        return int(scaled) if scaled.is_integer() else scaled


_UNITS = {
    "_us": Unit(_TIMES, NS_PER_US, "150us", "microseconds"),
    "_ms": Unit(_TIMES, NS_PER_MS, "50ms", "milliseconds"),
    "_s": Unit(_TIMES, NS_PER_S, "2s", "seconds"),
    "_bytes": Unit(_SIZES, 1, "64MiB", "bytes"),
    "_mb": Unit(_SIZES, _KIB**2, "64MiB", "MiB"),
    "_mib": Unit(_SIZES, _KIB**2, "64MiB", "MiB"),
}
_RATE = "_per_s"


def unit_of(key: str) -> Unit | None:
    """The unit at the end of the name of a setting; None if it has none."""
    if key.endswith(_RATE):
        return None
    return next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), None)


def ms_to_ns(milliseconds: float) -> int:
    """Milliseconds as whole nanoseconds."""
    return round(milliseconds * NS_PER_MS)


def ns_to_ms(nanoseconds: int) -> float:
    """Nanoseconds as milliseconds, for configuration files and reports."""
    return nanoseconds / NS_PER_MS
