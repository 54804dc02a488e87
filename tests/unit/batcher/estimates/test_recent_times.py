"""The window of the last times."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batcher.estimates.recent_times import ENOUGH, WINDOW, RecentTimes


def test_too_few_times_have_no_percentile() -> None:
    times = RecentTimes()
    for number in range(ENOUGH - 1):
        times.add(float(number))
    assert times.quantile(0.5) is None
    times.add(float(ENOUGH))
    assert times.quantile(0.5) == 10.0


@settings(max_examples=30, deadline=None)
@given(values=st.lists(st.floats(0.1, 10), min_size=ENOUGH, max_size=2 * WINDOW), share=st.floats(0.01, 0.99))
def test_a_percentile_is_of_the_last_times_only(values: list[float], share: float) -> None:
    times = RecentTimes()
    for value in values:
        times.add(value)
    last = sorted(values[-WINDOW:])
    assert times.quantile(share) == last[int(share * len(last))]
