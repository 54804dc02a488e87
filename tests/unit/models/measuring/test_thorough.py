from collections.abc import Callable, Mapping

import pytest

from sluice.models.errors import BackendFailed
from sluice.models.measuring.memory_peaks import robust_line
from sluice.models.measuring.quick import run_to_end
from sluice.models.measuring.thorough import is_settled, percentiles, profile_steps
from sluice.models.profiles.measurement import Cell, Measurement
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType, TensorSpec

MS = 1_000_000


class Clocked:
    """A backend whose runs take what `time_ns` says of rows and number of run, on a clock that only they move."""

    inputs = (TensorSpec("x", DataType.FP32, (-1, 3)),)
    outputs = ()
    provider, threads = "", 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, time_ns: Callable[[int, int], int]) -> None:
        self.runs: dict[int, int] = {}
        self._now = 0
        self._time_ns = time_ns
        monkeypatch.setattr("sluice.models.measuring.thorough.time.monotonic_ns", lambda: self._now)

    def load(self) -> "Clocked":
        self._now += 40 * MS
        return self

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = len(inputs["x"])
        run = self.runs[rows] = self.runs.get(rows, 0) + 1
        self._now += self._time_ns(rows, run)
        return {}


class Meter:
    """A MemoryMeter that reads what it is given, one after the other."""

    def __init__(self, *readings: int | None) -> None:
        self._readings = iter(readings)

    def restart(self) -> None:
        pass

    def peak_bytes(self) -> int | None:
        return next(self._readings, None)


def measured_of(backend: Clocked, sizes: tuple[int, ...], memory: Meter | None = None) -> Measurement:
    return run_to_end(profile_steps(backend.load, True, sizes, memory or Meter()))


def test_steady_times_are_settled_after_the_least_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Clocked(monkeypatch, lambda rows, run: 90 * MS if run == 1 else rows * 1000)
    measured = measured_of(backend, (1, 4))
    assert measured.cells == (Cell(1, 1000, 1000, 1000, 100), Cell(4, 4000, 4000, 4000, 100))
    assert (measured.load_ns, measured.warm_up_ns) == (40 * MS, 90 * MS - 1000)


def test_times_that_do_not_settle_end_after_the_most_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Clocked(monkeypatch, lambda rows, run: 1000 if run % 2 else 2000)
    (cell,) = measured_of(backend, (1,)).cells
    assert cell == Cell(1, 1000, 2000, 2000, 1000)


def test_a_few_disturbed_runs_do_not_move_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Clocked(monkeypatch, lambda rows, run: 500_000 if run % 40 == 0 else 1000)
    (cell,) = measured_of(backend, (1,)).cells
    assert (cell.p50_ns, cell.p90_ns, cell.p99_ns, cell.samples) == (1000, 1000, 500_000, 100)


def test_slow_batches_are_run_for_three_seconds_and_very_slow_ones_five_times(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Clocked(monkeypatch, lambda rows, run: {1: 100, 2: 10_000}[rows] * MS)
    measured = measured_of(backend, (1, 2))
    assert [cell.samples for cell in measured.cells] == [30, 5]


def test_a_batch_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rows: int, run: int) -> int:
        if rows == 4:
            raise BackendFailed("no kernel for it")
        return 1000

    with pytest.raises(BackendFailed, match="a batch of 4 rows: no kernel for it"):
        measured_of(Clocked(monkeypatch, fail), (1, 2, 4))


def test_it_ends_before_the_first_size_that_there_is_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rows: int, run: int) -> int:
        if rows > 2:
            raise BackendFailed("std::bad_alloc")
        return 1000

    backend = Clocked(monkeypatch, fail)
    measured = measured_of(backend, (1, 2, 4, 8))
    assert ([cell.batch for cell in measured.cells], measured.no_memory_batch) == ([1, 2], 4)
    assert 8 not in backend.runs
    assert measured.warnings == ("there was no memory for batch 4",)
    with pytest.raises(BackendFailed, match="a batch of 4 rows: std::bad_alloc"):
        measured_of(backend, (4, 8))


def test_memory_is_a_line_through_what_the_meter_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Clocked(monkeypatch, lambda rows, run: 1000)
    measured = measured_of(backend, (1, 2, 4), Meter(510, 520, 540))
    assert (measured.memory_rest_bytes, measured.memory_row_bytes) == (500, 10)
    unknown = measured_of(backend, (1, 2, 4), Meter(None, None, None))
    assert (unknown.memory_rest_bytes, unknown.memory_row_bytes) == (None, None)


def test_percentiles_are_times_that_occurred() -> None:
    assert percentiles(8, range(1, 101)) == Cell(8, 50, 90, 99, 100)
    assert percentiles(8, (10, 20, 30, 40, 50)) == Cell(8, 30, 50, 50, 5)


def test_settled_asks_for_an_interval_within_two_percent() -> None:
    assert is_settled([1000] * 100)
    assert is_settled([980] * 30 + [1000] * 40 + [1020] * 30)
    assert not is_settled([970] * 45 + [1000] * 10 + [1030] * 45)
    assert not is_settled([1000] * 3)


def test_a_line_is_not_moved_by_a_stray_point() -> None:
    points = [(1, 1010), (2, 1020), (4, 1040), (8, 9999), (16, 1160), (32, 1320)]
    assert robust_line(points) == (10, 1000)
    assert robust_line([(8, 700)]) == (0, 700)
