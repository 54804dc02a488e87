import numpy as np
import pytest

from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals
from sluice.loadgen.traffic.presets import PRESETS
from sluice.loadgen.traffic.processes.profile import parse_profile
from sluice.models.errors import ConfigError


@pytest.mark.parametrize("process", sorted(set(ArrivalProcess) - {ArrivalProcess.TRACE, ArrivalProcess.MLPERF}))
def test_every_process_has_the_mean_rate_that_was_asked_for(process: ArrivalProcess) -> None:
    arrivals = Arrivals(process, cv=0.5, shape=3.0, period_s=1.0).draw(1000.0, None, 200_000, np.random.default_rng(4))
    assert len(arrivals) == 200_000
    assert (np.diff(arrivals) >= 0).all()
    # A modulated rate is far from its mean for seconds: this run has some forty stays.
    assert len(arrivals) / (arrivals[-1] / 1e9) == pytest.approx(1000, rel=0.35 if process == "mmpp" else 0.02)


@pytest.mark.parametrize("process", ["constant", "gamma", "pareto", "uniform"])
def test_a_profile_changes_the_rate_of_any_independent_gaps(process: str) -> None:
    arrivals = Arrivals(ArrivalProcess(process), cv=0.5, shape=3.0, profile=parse_profile("100@10s,900@10s"))
    assert arrivals.own_rate() == 500
    due_ns = arrivals.draw(500.0, None, None, np.random.default_rng(4))
    assert int((due_ns < 10e9).sum()) == pytest.approx(1000, abs=80)
    assert len(due_ns) == pytest.approx(10_000, abs=500)


def test_a_profile_at_another_rate_keeps_its_form() -> None:
    arrivals = Arrivals(ArrivalProcess.CONSTANT, profile=parse_profile("100@10s,300@10s"))
    due_ns = arrivals.draw(20.0, None, None, np.random.default_rng(4))
    assert (int((due_ns < 10e9).sum()), len(due_ns)) == (99, 399)


def test_a_profile_of_what_has_a_rate_of_its_own_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--profile: requires --arrivals poisson, .*; got --arrivals mmpp"):
        Arrivals(ArrivalProcess.MMPP, profile=parse_profile("100@10s"))


def test_the_presets_have_the_gaps_of_esg() -> None:
    limits_ms = {}
    for name, preset in PRESETS.items():
        gaps = np.diff(preset.arrivals.draw(preset.rate, None, 50_000, np.random.default_rng(1))) / 1e6
        limits_ms[name] = [round(float(gaps.min()), 1), round(float(gaps.max()), 1)]
    assert limits_ms == {"light": [40.0, 67.2], "normal": [20.0, 33.6], "heavy": [10.0, 16.8]}


@pytest.mark.parametrize(
    ("arrivals", "text"),
    [
        (Arrivals(), "poisson"),
        (Arrivals(ArrivalProcess.GAMMA), "gamma, coefficient of variation 4"),
        (Arrivals(ArrivalProcess.PARETO), "pareto, shape 1.5"),
        (Arrivals(ArrivalProcess.MMPP), "mmpp, states 1@8s,4@2s"),
        (Arrivals(ArrivalProcess.DIURNAL), "diurnal, amplitude 0.5, period 60 s"),
        (Arrivals(profile=parse_profile("1@2s,3@1s")), "poisson, profile of 3 s"),
    ],
)
def test_arrivals_describe_themselves(arrivals: Arrivals, text: str) -> None:
    assert arrivals.describe() == text
