"""A trace: recorded arrivals with what is known of each."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sluice.models.errors import ConfigError

MAX_TRACE = 5_000_000
"""Upper bound on the arrivals of a trace."""
MAX_NAMES = 200_000
"""Upper bound on the different models or classes of a trace."""

Rows = npt.NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)


@dataclass(frozen=True)
class Labels:
    """A name for each arrival: `names[index[k]]` is that of arrival k; `index` is int32, (arrivals,)."""

    names: tuple[str, ...]
    index: npt.NDArray[np.int32]

    def take(self, rows: Rows) -> "Labels":
        """The labels of these arrivals, without names that none of them has."""
        used, index = np.unique(self.index[rows], return_inverse=True)
        return Labels(tuple(self.names[each] for each in used.tolist()), index.astype(np.int32))


@dataclass(frozen=True)
class ArrivalTrace:
    """Columns of shape (arrivals,), in the order of the times `t_s`: float64 seconds, not below 0.

    `size` is int64 and counts rows or tokens, -1 where unknown. `slo_ms` is float64, NaN where there is no objective. A
    column that the trace lacks is None.
    """

    t_s: npt.NDArray[np.float64]
    model: Labels | None = None
    query_class: Labels | None = None
    size: npt.NDArray[np.int64] | None = None
    slo_ms: npt.NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.t_s)

    def take(self, rows: Rows, t_s: npt.NDArray[np.float64]) -> "ArrivalTrace":
        """These arrivals, in any order and any number of times, at other times; sorted by them."""
        order = np.argsort(t_s, kind="stable")
        rows = rows[order]
        return ArrivalTrace(
            t_s[order],
            None if self.model is None else self.model.take(rows),
            None if self.query_class is None else self.query_class.take(rows),
            None if self.size is None else self.size[rows],
            None if self.slo_ms is None else self.slo_ms[rows],
        )

    def followed_by(self, other: "ArrivalTrace") -> "ArrivalTrace":
        """Both traces in one, which has the columns that either has."""
        size, slo_ms = self.size, self.slo_ms
        if size is not None or other.size is not None:
            size = np.concatenate([_filled(each.size, len(each), -1) for each in (self, other)])
        if slo_ms is not None or other.slo_ms is not None:
            slo_ms = np.concatenate([_filled(each.slo_ms, len(each), np.nan) for each in (self, other)])
        whole = ArrivalTrace(
            np.concatenate((self.t_s, other.t_s)),
            _followed(self.model, other.model, len(self), len(other)),
            _followed(self.query_class, other.query_class, len(self), len(other)),
            size,
            slo_ms,
        )
        return whole.take(np.arange(len(whole)), whole.t_s)

    def from_zero(self) -> "ArrivalTrace":
        """The trace with its first arrival at 0, in whole microseconds: dates leave no more of the digits."""
        return replace(self, t_s=np.round(self.t_s - self.t_s[0], 6))

    @property
    def mean_rate(self) -> float:
        """Arrivals a second from the first to the last; raises `ConfigError` unless there are two different times."""
        if len(self) < 2 or self.t_s[0] == self.t_s[-1]:
            raise ConfigError(f"trace: expected at least two distinct times, got {len(self)} arrivals")
        return float((len(self) - 1) / (self.t_s[-1] - self.t_s[0]))


def _filled(column: npt.NDArray[_T] | None, count: int, nothing: float) -> npt.NDArray[_T]:
    return np.full(count, nothing) if column is None else column


def _followed(first: Labels | None, second: Labels | None, *counts: int) -> Labels | None:
    if first is None and second is None:
        return None
    numbers: dict[str, int] = {}
    parts = []
    for labels, count in zip((first, second), counts, strict=True):
        known = labels or Labels(("",), np.zeros(count, np.int32))
        places = np.array([numbers.setdefault(name, len(numbers)) for name in known.names], np.int32)
        parts.append(places[known.index])
    return Labels(tuple(numbers), np.concatenate(parts))


class TraceBuilder:
    """Collects the arrivals of a trace in any order; `path` is named in errors."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._t_s = array("d")
        self._model = _LabelColumn(path, "models")
        self._class = _LabelColumn(path, "classes")
        self._size = array("q")
        self._slo_ms = array("d")

    def __len__(self) -> int:
        return len(self._t_s)

    def add(
        self, t_s: float, model: str = "", query_class: str = "", size: int = -1, slo_ms: float = float("nan")
    ) -> None:
        """Add an arrival; raises `ConfigError` beyond `MAX_TRACE`."""
        self.add_many([t_s], model, query_class, size, slo_ms)

    def add_many(
        self,
        t_s: Sequence[float] | npt.NDArray[np.float64],
        model: str = "",
        query_class: str = "",
        size: int = -1,
        slo_ms: float = float("nan"),
    ) -> None:
        """Add arrivals that differ only in their time."""
        count = len(t_s)
        if len(self) + count > MAX_TRACE:
            raise ConfigError(f"{self._path}: too long; expected at most {MAX_TRACE} arrivals")
        self._t_s.extend(t_s)
        self._model.extend(model, count)
        self._class.extend(query_class, count)
        self._size.extend([size] * count)
        self._slo_ms.extend([slo_ms] * count)

    def trace(self) -> ArrivalTrace:
        """The trace, in the order of its times; raises `ConfigError` when there are no arrivals."""
        if not len(self):
            raise ConfigError(f"{self._path}: no arrivals; expected at least one")
        t_s = np.array(self._t_s)
        size, slo_ms = np.array(self._size), np.array(self._slo_ms)
        whole = ArrivalTrace(
            t_s,
            self._model.labels(),
            self._class.labels(),
            None if (size < 0).all() else size,
            None if np.isnan(slo_ms).all() else slo_ms,
        )
        return whole.take(np.arange(len(t_s)), t_s)


class _LabelColumn:
    """The names of successive arrivals; an empty name stands for none."""

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what
        self._numbers: dict[str, int] = {}
        self._index = array("i")

    def extend(self, name: str, count: int) -> None:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers)
            if number >= MAX_NAMES:
                raise ConfigError(f"{self._path}: too many {self._what}; expected at most {MAX_NAMES}")
        self._index.extend([number] * count)

    def labels(self) -> Labels | None:
        names = tuple(self._numbers)
        return None if names == ("",) else Labels(names, np.array(self._index, np.int32))
