from collections.abc import Mapping

import pytest

from sluice.loadgen.papers import memory_packing
from sluice.loadgen.papers.engines.gpu_use import busy_share, energy_kj
from sluice.loadgen.papers.engines.packing_replay import SchedulerTiming
from sluice.loadgen.papers.experiment import Effort
from sluice.loadgen.papers.memory_packing import (
    EXTRA_PERCENT,
    USE,
    PackingCase,
    arrivals_ns,
    cases,
    replay_engines,
    request_mib,
    table,
)
from sluice.models.units import NS_PER_S
from sluice.mps.packing.best_fit import BestFit
from sluice.mps.packing.peak_safe import PeakSafe
from sluice.mps.packing.pp import PeakPrediction

Runs = Mapping[tuple[str, int], PackingCase]


@pytest.fixture(scope="module")
def runs() -> Runs:
    return {(case.policy, case.extra_percent): case for case in cases()}


@pytest.mark.parametrize(
    ("policy", "makespans_s"),
    [
        ("exclusive", (4077, 4351, 4626, 4787, 4905, 4892)),
        ("best_fit", (1334, 1516, 2411, 4796, 4806, 4597)),
    ],
)
def test_the_twelve_published_makespans_come_out(runs: Runs, policy: str, makespans_s: tuple[int, ...]) -> None:
    for extra_percent, makespan_s in zip(EXTRA_PERCENT, makespans_s, strict=True):
        assert runs[policy, extra_percent].replayed.makespan_s == pytest.approx(makespan_s, rel=0.02)


def test_measured_peaks_wait_far_less_than_requests_and_never_run_out(runs: Runs) -> None:
    published_pending_s = 1717
    safe = runs["peak_safe", 250].replayed
    assert published_pending_s / safe.pending_s >= 8.6
    assert runs["best_fit", 250].replayed.pending_s / safe.pending_s >= 8.6
    assert [runs["peak_safe", extra].replayed.restarts for extra in EXTRA_PERCENT] == [0] * 6
    assert max(runs["peak_safe", extra].replayed.peak_mib for extra in EXTRA_PERCENT) <= 32_510 - 512


def test_forecasts_of_samples_run_out_of_memory(runs: Runs) -> None:
    # Published: 71 restarts in six runs.
    assert sum(runs["pp", extra].replayed.restarts for extra in EXTRA_PERCENT) > 20
    for extra in EXTRA_PERCENT:
        case = runs["pp", extra]
        assert case.published.makespan_s is not None
        assert case.replayed.makespan_s == pytest.approx(case.published.makespan_s, rel=0.08)


@pytest.mark.parametrize("spread_s", [0.0, 12.9])
def test_engines_as_slow_as_in_the_fullest_runs_wait_little_as_well(spread_s: float) -> None:
    # 176.5 s is what an engine took where up to seven shared the device, with that deviation.
    slow = replay_engines(PeakSafe(), SchedulerTiming(look_ns=NS_PER_S), 250, run_s=176.5, spread_s=spread_s)
    assert 1717 / slow.pending_s >= 8.6
    assert slow.restarts == 0
    assert slow.peak_mib <= 32_510 - 512


def test_requests_are_capped_at_the_device() -> None:
    assert [request_mib(BestFit(), extra) // 1024 for extra in EXTRA_PERCENT] == [7, 10, 14, 17, 21, 24]
    assert request_mib(PeakPrediction(), 250) == 24_479
    assert request_mib(PeakPrediction(), 400) == 32_510


def test_arrivals_are_those_of_the_experiment() -> None:
    gaps = [(b - a) // NS_PER_S for a, b in zip(arrivals_ns(), arrivals_ns()[1:], strict=False)]
    # In the log of the scheduler these are the first: 33.3, 23.3, 36.5, 39.5 and 29.1 s.
    assert gaps[:5] == [33, 23, 36, 39, 29]
    assert (len(gaps), min(gaps), max(gaps)) == (29, 20, 40)


def test_the_report_has_the_table(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_packing, "cases", lambda: iter(runs.values()))
    (lines,) = memory_packing.run(Effort()).tables
    assert "| best_fit | +0 % | 132 | 131 | 1334 | 1344 | +0.8% | 0 | 0 | 27976 |" in lines.splitlines()


def test_published_figures_are_beside_those_of_the_replay(runs: Runs) -> None:
    lines = table([runs["best_fit", 250], runs["peak_safe", 250]]).splitlines()
    assert lines[0].count("|") == lines[2].count("|") == lines[3].count("|") == 11
    assert lines[2].startswith("| best_fit | +250 % | 1717 | 1768 | 4597 | 4584 | -0.3% | 0 | 0 |")
    assert lines[3].startswith("| peak_safe | +250 % |  | 62 |  | 1198 |  |  | 0 |")


def test_the_memory_in_use_comes_out_as_logged_and_the_busy_share_of_several_engines_does_not(runs: Runs) -> None:
    replayed = {name: runs[name, 0].replayed for name in USE}
    for name, memory_mib in (("exclusive", 5959), ("best_fit", 21567), ("pp", 22868)):
        assert replayed[name].memory_mib == pytest.approx(memory_mib, rel=0.05)
    alone = 0.043 * 4095 / 3465  # an engine works for 3465 of 4095 s
    assert busy_share(replayed["exclusive"], alone) == pytest.approx(0.043, rel=0.01)
    assert busy_share(replayed["best_fit"], alone) < 0.2 < USE["best_fit"].busy


def test_the_energy_is_that_of_rest_and_of_work() -> None:
    assert energy_kj(0.0, 1000) == 50
    assert energy_kj(0.5, 1000) == 150
    assert energy_kj(1.0, 1000) == 250
