"""The changes of metrics that models in Python define."""

import enum
import re

import msgspec

MOST_SERIES = 1000
"""The most metrics that a model may define, counted by labels."""
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,99}")
RESERVED = ("sluice_", "nv_", "process_", "python_")
"""The beginnings of names that are the server's."""


class MetricKind(enum.IntEnum):
    """The kinds of metrics; the numbers are those of Triton."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class MetricUpdate(msgspec.Struct, frozen=True, array_like=True):
    """A metric, and how it has changed since the last update.

    `value` is the increase of a counter, the value of a gauge, or the increase of a histogram's sum. `counts` is the
    increase of each bucket of a histogram, the one without a limit included. `buckets` are the limits, ascending.
    """

    name: str
    description: str
    kind: MetricKind
    labels: tuple[tuple[str, str], ...]
    value: float
    buckets: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


def check_family(name: str) -> None:
    """Raise ValueError for a name that no metric of a model may have."""
    if not NAME.fullmatch(name):
        raise ValueError(f"metric '{name:.200}': expected a name of letters, digits, '_' and ':', up to 200")
    if name.startswith(RESERVED):
        raise ValueError(f"metric '{name}': names that begin with {', '.join(RESERVED)} are the server's")
