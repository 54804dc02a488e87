"""The runs against a live server, and the capacity that they find, on a server with a given limit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import cast

import msgspec
import pytest

from sluice.loadgen.run import runner
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.validation.measurement import LoadMeasurement
from sluice.loadgen.validation.server_process import GatewayProcess
from tests.unit.loadgen.results import result_of


class Server:
    """Completes the offered rate up to a limit, given for each run; the last limit stays."""

    url = "http://server"

    def __init__(self, limits: Sequence[float]) -> None:
        self.runs: list[RunConfig] = []
        self._limits: Iterator[float] = chain(limits, repeat(limits[-1]))

    def cpu_ns(self) -> int:
        return 0

    def run(self, config: RunConfig) -> RunResult:
        self.runs.append(config)
        result = result_of(config, latency_ms=1, queries=2000)
        completed = min(config.rate, next(self._limits))
        metrics = msgspec.structs.replace(result.metrics, offered_per_s=config.rate, completed_per_s=completed)
        return replace(result, metrics=metrics)


def rounds(server: Server, monkeypatch: pytest.MonkeyPatch, loads: Sequence[float] = ()) -> LoadMeasurement:
    monkeypatch.setattr(runner, "run", server.run)
    run = RunConfig(target="", model="m", rate=1.0, duration_s=6.0, warmup_s=0.5)
    return LoadMeasurement(cast(GatewayProcess, server), run, loads, lambda line: None)


def test_capacity_is_the_most_that_was_completed_in_finer_and_finer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([650])
    assert rounds(server, monkeypatch).capacity() == 650
    # A warm-up, twice as much until 800 is too much, then a quarter more until 781 is too much twice.
    assert [run.rate for run in server.runs] == [100, 100, 200, 400, 800, 500, 625, 781.25, 781.25]


def test_an_overload_that_completes_less_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([1000, 1000, 1000, 1000, 300, 1000, 1000, 250])
    assert rounds(server, monkeypatch).capacity() == 625


def test_a_round_has_every_load_after_those_that_calibrate_and_are_no_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server([2000])
    done = rounds(server, monkeypatch, loads=(1.2, 0.2, 0.8)).round(1000, seed=7)
    assert [(run.rate, run.duration_s) for run in server.runs] == [
        (10, 3.5),
        (200, 6.0),
        (300, 3.5),
        (700, 3.5),
        (800, 6.0),
        (1100, 3.5),
        (1200, 6.0),
        (1100, 3.5),
    ]
    assert [run.result.config.rate for run in done.compared] == [1200, 200, 800]
    assert {run.result.config.seed for run in done.compared} == {7}
    assert len({run.seed for run in server.runs}) == 6
    assert len(done.runs) == 8
