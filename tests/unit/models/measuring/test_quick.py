from collections.abc import Mapping
from pathlib import Path

import pytest

from sluice.models.backends import onnxruntime
from sluice.models.measuring.quick import measure_steps, measure_table, run_to_end, warm_up_steps
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.tensors.arrays import Array
from sluice.models.tensors.spec import DataType, TensorSpec
from tests.support.models.onnx_models import save_fixed_batch, save_mlp

MS = 1_000_000
TABLE = LatencyTable.from_ms({1: 5, 16: 10})


class Stepping:
    """A backend whose runs take the given times, on a clock that only they move."""

    inputs = (TensorSpec("x", DataType.FP32, (-1, 3, -1)), TensorSpec("s", DataType.BYTES, (-1,)))
    outputs = ()
    provider, threads = "", 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times_ns: list[int]) -> None:
        self.seen: list[dict[str, Array]] = []
        self._now = 0
        self._times = iter(times_ns)
        monkeypatch.setattr("sluice.models.measuring.quick.time.monotonic_ns", lambda: self._now)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.seen.append(dict(inputs))
        self._now += next(self._times)
        return {}

    def pass_by(self, time_ns: int) -> None:
        self._now += time_ns


def test_the_median_of_the_runs_after_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Stepping(monkeypatch, [900 * MS, 3 * MS, 1 * MS, 2 * MS, 900 * MS, 5 * MS, 7 * MS, 3 * MS])
    assert measure_table(backend, True, (1, 4), repeats=3) == LatencyTable(((1, 2 * MS), (4, 5 * MS)))
    assert [run["x"].shape for run in backend.seen] == [(1, 3, 1)] * 4 + [(4, 3, 1)] * 4
    assert backend.seen[-1]["s"].tolist() == [b""] * 4


def test_a_slow_model_is_timed_for_a_quarter_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Stepping(monkeypatch, [900 * MS, 200 * MS, 200 * MS, 200 * MS])
    assert measure_table(backend, True, (1,)) == LatencyTable(((1, 200 * MS),))
    assert len(backend.seen) == 3


@pytest.mark.parametrize(("times_ms", "known_ms"), [([9, 500], 9), ([9, 2, 500], 2), ([500, 2, 2], 2)])
def test_one_run_that_is_held_up_is_not_taken_for_what_the_model_takes(
    monkeypatch: pytest.MonkeyPatch, times_ms: list[int], known_ms: int
) -> None:
    backend = Stepping(monkeypatch, [time_ms * MS for time_ms in times_ms])
    assert measure_table(backend, True, (1,)) == LatencyTable(((1, known_ms * MS),))
    assert len(backend.seen) == len(times_ms)


def test_measuring_takes_one_run_a_step_and_what_happens_between_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = Stepping(monkeypatch, [9 * MS, 100 * MS, 100 * MS])
    steps = measure_steps(backend, True, (1,))
    for runs in range(1, 4):
        next(steps)
        assert len(backend.seen) == runs
        backend.pass_by(1000 * MS)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == LatencyTable(((1, 100 * MS),))


def test_warming_runs_every_size_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Stepping(monkeypatch, [1, 1, 1])
    run_to_end(warm_up_steps(backend, True, (1, 2, 4), TABLE))
    assert [run["x"].shape[0] for run in backend.seen] == [1, 2, 4]


def sizes(backend: Stepping) -> list[int]:
    return [run["x"].shape[0] for run in backend.seen]


def test_a_size_is_run_once_where_the_two_before_predict_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times_ms = [9, 2, 2, 3, 3, 3, 5.4, 8.5, 8, 8, 13]
    backend = Stepping(monkeypatch, [round(time_ms * MS) for time_ms in times_ms])
    table = measure_table(backend, True, (1, 2, 4, 8, 16))
    # The lines predict 5 ms for 4 rows, 10.2 ms for 8, and 13.2 ms for 16.
    assert table == LatencyTable.from_ms({1: 2, 2: 3, 4: 5.4, 8: 8, 16: 13})
    assert sizes(backend) == [1, 1, 1, 2, 2, 2, 4, 8, 8, 8, 16]


def test_sizes_beyond_the_budget_are_not_run_and_take_as_long_per_row(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Stepping(monkeypatch, [9000 * MS, *[100 * MS] * 2, *[120 * MS] * 3, 150 * MS])
    steps = measure_steps(backend, True, (1, 2, 4, 8, 16), budget_ns=1000 * MS)
    assert run_to_end(steps) == LatencyTable.from_ms({1: 100, 2: 120, 4: 150, 8: 300, 16: 600})
    assert sizes(backend) == [1, 1, 1, 2, 2, 2, 4]


def test_a_model_is_run_at_its_first_size_whatever_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Stepping(monkeypatch, [100 * MS] * 4)
    assert run_to_end(measure_steps(backend, True, (1, 8), budget_ns=0)) == LatencyTable.from_ms({1: 100, 8: 800})
    run_to_end(warm_up_steps(backend, True, (1, 8), TABLE, budget_ns=0))
    assert sizes(backend) == [1, 1, 1, 1]


def test_warming_ends_before_the_size_that_would_exceed_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Stepping(monkeypatch, [1] * 3)
    run_to_end(warm_up_steps(backend, True, (1, 2, 4, 8), TABLE, budget_ns=30 * MS))
    assert sizes(backend) == [1, 2, 4]


def test_real_models(tmp_path: Path) -> None:
    mlp = onnxruntime.load(str(save_mlp(tmp_path / "mlp.onnx", [4, 3])), 1)
    fixed = onnxruntime.load(str(save_fixed_batch(tmp_path / "fixed.onnx")), 1)
    assert [size for size, _ in measure_table(mlp, True, (1, 2, 4)).cells] == [1, 2, 4]
    assert [size for size, _ in measure_table(fixed, False, (1,)).cells] == [1]


class Small(Stepping):
    """Has no memory for more than `room` rows."""

    room = 0

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if inputs["x"].shape[0] > self.room:
            raise MemoryError
        return super().run(inputs)


def test_sizes_that_there_is_no_memory_for_are_left_out_but_not_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Small(monkeypatch, [5 * MS] * 20)
    backend.room = 5
    assert measure_table(backend, True, (1, 4, 8, 16), repeats=1) == LatencyTable(((1, 5 * MS), (4, 5 * MS)))
    run_to_end(warm_up_steps(backend, True, (1, 4, 8, 16), TABLE))
    assert [run["x"].shape[0] for run in backend.seen] == [1, 1, 4, 4, 1, 4]
    backend.room = 0
    with pytest.raises(MemoryError):
        measure_table(backend, True, (1, 4))


def test_a_size_that_fails_for_another_reason_fails_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Stepping(monkeypatch, [5 * MS] * 2)  # it has no answer to the third run
    with pytest.raises(RuntimeError, match="StopIteration"):
        measure_table(backend, True, (1, 4), repeats=1)
