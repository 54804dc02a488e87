import numpy as np
import pytest

from sluice.loadgen.traffic.processes.bounds import ArrivalBounds, Times
from sluice.loadgen.traffic.processes.diurnal import DiurnalCurve
from sluice.loadgen.traffic.processes.mmpp import ModulatedCurve, RateState, parse_states
from sluice.loadgen.traffic.processes.profile import ProfileCurve, RateSegment, parse_profile
from sluice.loadgen.traffic.processes.renewal import constant_gaps, poisson_gaps
from sluice.loadgen.traffic.processes.varying_rate import RateCurve, varying
from sluice.models.errors import ConfigError


def poisson(curve: RateCurve, rate: float, duration_s: float, seed: int = 3) -> Times:
    return varying(ArrivalBounds(rate, duration_s, None), curve, poisson_gaps(np.random.default_rng(seed)))


def counts(arrivals: Times, window_s: float, windows: int) -> list[int]:
    return list(np.bincount((arrivals / 1e9 / window_s).astype(np.int64), minlength=windows))


def test_a_profile_is_read() -> None:
    assert parse_profile("100@10s, 100..400@500ms,0@1min") == (
        RateSegment(100, 100, 10),
        RateSegment(100, 400, 0.5),
        RateSegment(0, 0, 60),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("100", "expected RATE@TIME or RATE..RATE@TIME, such as 100@10s, got '100'"),
        ("100@10s,", "got ''"),
        ("100@10 apples", "got '100@10 apples'"),
        ("-1@10s", "expected rates of at least 0 and a time above 0, got '-1@10s'"),
        ("inf@10s", "expected rates of at least 0"),
        ("1@0s", "a time above 0, got '1@0s'"),
        ("0@10s", "expected a rate above 0 in at least one part"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_profile(text)


def test_a_clock_on_a_profile_ticks_as_fast_as_its_rate() -> None:
    curve = ProfileCurve(parse_profile("2@1s,0@1s,4@1s"))
    assert curve.mean_rate == 2
    arrivals = varying(ArrivalBounds(2.0, 6.0, None), curve, constant_gaps())
    # Two arrivals in the first second, none in the second, four in the third; then the profile starts over. An arrival
    # at the end of a part is one at the beginning of the next that has any.
    assert (arrivals / 1e6).round().astype(int).tolist() == [
        500,
        2000,
        2250,
        2500,
        2750,
        3000,
        3500,
        5000,
        5250,
        5500,
        5750,
    ]


def test_a_ramp_is_exact() -> None:
    """At a rate of 2t the k-th tick of a clock is due at the root of k."""
    curve = ProfileCurve([RateSegment(0, 8, 4)])
    arrivals = varying(ArrivalBounds(4.0, 4.0, None), curve, constant_gaps())
    assert arrivals.tolist() == pytest.approx([1e9 * k**0.5 for k in range(1, 16)], abs=10)
    falling = varying(ArrivalBounds(4.0, 4.0, None), ProfileCurve([RateSegment(8, 0, 4)]), constant_gaps())
    assert falling.tolist() == pytest.approx([4e9 - 1e9 * (16 - k) ** 0.5 for k in range(1, 16)], abs=10)


def test_a_profile_of_poisson_arrivals_has_the_counts_of_its_rate() -> None:
    arrivals = poisson(ProfileCurve(parse_profile("1000@10s,4000@5s")), 2000.0, 15.0)
    first, second, third = counts(arrivals, 5.0, 3)
    # Four standard deviations of each count.
    assert [first, second, third] == pytest.approx([5000, 5000, 20_000], abs=4 * 141)


def test_a_diurnal_rate_rises_and_falls_as_a_sine() -> None:
    """1 + sin/2 has the means 1 + 1/pi and 1 - 1/pi in the halves of a period: 1.31831 and 0.68169."""
    arrivals = poisson(DiurnalCurve(0.5, 10.0), 2000.0, 20.0)
    assert counts(arrivals, 5.0, 4) == pytest.approx([13_183, 6817, 13_183, 6817], abs=4 * 115)


def test_a_diurnal_rate_without_amplitude_is_a_poisson_process() -> None:
    arrivals = poisson(DiurnalCurve(0.0, 10.0), 1000.0, 1.0)
    plain = np.cumsum(poisson_gaps(np.random.default_rng(3))(len(arrivals))) * 1e6
    assert arrivals == pytest.approx(plain, abs=2)


ON_OFF = (RateState(0, 1.0), RateState(1, 0.25))


def test_a_modulated_rate_has_the_mean_that_was_asked_for_and_bursts() -> None:
    """Variance of counts over mean of an on-off source, by its autocovariance (rates 0 and 5 of 100/s)."""
    arrivals = poisson(ModulatedCurve(ON_OFF, np.random.default_rng(1)), 100.0, 20_000.0)
    assert len(arrivals) / 20_000 == pytest.approx(100, rel=0.04)
    per_second = np.array(counts(arrivals, 1.0, 20_000))
    # Rates leave their states at 1/s and 4/s: variance 500² · 0.2 · 0.8 and decay d = 5/s, so that
    # IDC(1 s) = 1 + 2 · 40 000 · (1/d - (1 - exp(-d)) / d²) / 100 = 129.2.
    assert per_second.var() / per_second.mean() == pytest.approx(129.2, rel=0.05)
    assert (per_second == 0).mean() > 0.2


def test_each_state_is_left_for_any_other() -> None:
    """Three states of equal stays, of which one has all the arrivals: a third of the time is busy."""
    states = (RateState(0, 1.0), RateState(0, 1.0), RateState(3, 1.0))
    arrivals = poisson(ModulatedCurve(states, np.random.default_rng(1)), 100.0, 5000.0)
    per_tenth = np.array(counts(arrivals, 0.1, 50_000))
    assert (per_tenth > 0).mean() == pytest.approx(0.354, abs=0.03)


def test_a_longer_run_continues_a_shorter_one() -> None:
    def run(duration_s: float) -> list[int]:
        return list(poisson(ModulatedCurve(ON_OFF, np.random.default_rng(9)), 1000.0, duration_s))

    short, long = run(100.0), run(400.0)
    assert len(long) > 200_000
    assert long[: len(short)] == short
    assert long == sorted(long)


def test_states_are_read() -> None:
    assert parse_states("1@8s,4@500ms") == (RateState(1, 8), RateState(4, 0.5))


@pytest.mark.parametrize("text", ["4", "@2s", "4@", "-1@2s", "4@0s", "nan@1s", "1@1s,,"])
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected FACTOR@TIME, such as 4@2s"):
        parse_states(text)


@pytest.mark.parametrize("states", [(), ON_OFF[:1], (RateState(0, 1.0), RateState(0, 2.0))])
def test_states_without_arrivals_are_refused(states: tuple[RateState, ...]) -> None:
    with pytest.raises(ConfigError, match="states: expected 2 to 64 states, one of them with a factor above 0"):
        ModulatedCurve(states, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("amplitude", "period_s", "message"),
    [(1.1, 1.0, "--amplitude: expected a number between 0 and 1"), (0.5, 0.0, "--period: expected a positive number")],
)
def test_a_sine_that_is_no_rate_is_refused(amplitude: float, period_s: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DiurnalCurve(amplitude, period_s)
