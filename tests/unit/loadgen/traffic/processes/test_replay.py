import numpy as np

from sluice.loadgen.traffic.processes.bounds import ArrivalBounds
from sluice.loadgen.traffic.processes.replay import replay

TRACE = np.array([100.0, 101.0, 101.0, 108.0])


def test_a_trace_is_stretched_to_the_mean_rate() -> None:
    # Its mean gap is 8/3, which is to be 0.1 s.
    assert replay(TRACE, ArrivalBounds(10.0, None, 4)).tolist() == [0, 37_500_000, 37_500_000, 300_000_000]


def test_a_trace_that_is_shorter_than_the_run_starts_over_a_mean_gap_after_its_end() -> None:
    assert replay(TRACE, ArrivalBounds(10.0, None, 6)).tolist()[4:] == [400_000_000, 437_500_000]
    assert replay(TRACE, ArrivalBounds(10.0, 0.8, None)).tolist()[4:] == [
        400_000_000,
        437_500_000,
        437_500_000,
        700_000_000,
    ]
    assert len(replay(TRACE, ArrivalBounds(10.0, 1000.0, None))) == 10_000


def test_whichever_bound_comes_first_ends_a_trace() -> None:
    assert replay(TRACE, ArrivalBounds(10.0, 0.3, None)).tolist() == [0, 37_500_000, 37_500_000]
    assert len(replay(TRACE, ArrivalBounds(10.0, 100.0, 2))) == 2
