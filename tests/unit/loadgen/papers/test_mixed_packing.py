import pytest

from sluice.loadgen.papers import mixed_packing
from sluice.loadgen.papers.engines.packing_replay import ReplayResult
from sluice.loadgen.papers.experiment import Effort
from sluice.loadgen.papers.memory_packing import EXTRA_PERCENT
from sluice.loadgen.papers.mixed_packing import ENGINES, cases, ratios, use_ratios

Runs = dict[str, list[ReplayResult]]


@pytest.fixture(scope="module")
def runs() -> Runs:
    return cases()


def test_there_are_25_engines_of_six_kinds() -> None:
    assert len(ENGINES) == 6
    assert sum(len(engine.queries) for engine in ENGINES) == 25


def test_over_provisioned_requests_delay_engines_and_measured_peaks_do_not(runs: Runs) -> None:
    by_average = [run.pending_s for run in runs["best_fit"]]
    assert by_average[0] == pytest.approx(10, abs=2)
    assert by_average[3:] == pytest.approx([540] * 3, rel=0.02)
    assert all(run.pending_s <= 5 and run.restarts == 0 for run in runs["peak_safe"])


def test_the_ratios_of_the_slides_are_reached(runs: Runs) -> None:
    pending, p99 = ratios(runs["best_fit"], runs["peak_safe"])
    assert (pending >= 8.6, p99 >= 2.4) == (True, True)
    pending, p99 = ratios(runs["exclusive"], runs["peak_safe"])
    assert (pending >= 11, p99 >= 3.2) == (True, True)
    for extra, by_average, safe in zip(EXTRA_PERCENT, runs["best_fit"], runs["peak_safe"], strict=True):
        assert extra < 100 or by_average.p99_s / safe.p99_s >= 2.4


def test_the_published_policy_gives_ratios_of_the_size_of_the_slides(runs: Runs) -> None:
    # On the slides 8.6 and 2.4, and 11 and 3.2.
    assert ratios(runs["best_fit"], runs["pp"]) == pytest.approx((5.2, 2.1), rel=0.03)
    assert ratios(runs["exclusive"], runs["pp"]) == pytest.approx((14.3, 3.1), rel=0.03)


def test_sharing_uses_the_gpu_more_at_little_more_power(runs: Runs) -> None:
    # On the slides the memory, the busy share and the power with `pp` are 1.5, 2.1 and 1.1 times those of best fit,
    # and 2.5, 6.1 and 1.2 times those of one engine at a time.
    assert use_ratios(runs["pp"], runs["best_fit"])[:3] == pytest.approx((1.33, 1.83, 1.06), rel=0.02)
    assert use_ratios(runs["pp"], runs["exclusive"])[:3] == pytest.approx((2.06, 8.7, 1.14), rel=0.02)
    energy = use_ratios(runs["peak_safe"], runs["exclusive"])[3]
    assert energy < use_ratios(runs["pp"], runs["exclusive"])[3] < 1


def test_the_report_has_the_table(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_packing, "cases", lambda: runs)
    lines = mixed_packing.run(Effort()).tables[0].splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| exclusive", "| best_fit", "| pp", "| peak_safe"]
    assert {line.count("|") for line in lines} == {13}
