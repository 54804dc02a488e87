"""The queue M/D/1: Poisson arrivals, one server that takes the same time for each, and no bound."""

import math

import numpy as np
import numpy.typing as npt


def share_that_waits_at_most(wait_s: float, rate: float, service_s: float) -> float:
    """P[wait <= x] (Erlang 1909): (1 - rho) times the sum of (-z)^k e^z / k!, with z = rate (x - k D)."""
    terms = (
        (-z) ** k / math.factorial(k) * math.exp(z)
        for k in range(math.floor(wait_s / service_s + 1e-9) + 1)
        for z in [rate * (wait_s - k * service_s)]
    )
    return (1 - rate * service_s) * sum(terms)


def highest_rate(objective_s: float, percentile: float, service_s: float) -> float:
    """The rate at which just `percentile` % of the queries wait so short that their service ends in time."""
    low, high = 0.0, 1 / service_s
    while high - low > 1e-9:
        middle = (low + high) / 2
        met = share_that_waits_at_most(objective_s - service_s, middle, service_s) >= percentile / 100
        low, high = (middle, high) if met else (low, middle)
    return low


def ends_ns(arrivals_ns: npt.NDArray[np.int64], service_ns: int) -> npt.NDArray[np.int64]:
    """When each arrival's service ends, shape (arrivals,): the latest start of all before it, and what follows."""
    work_ns = np.arange(len(arrivals_ns), dtype=np.int64) * service_ns
    ends: npt.NDArray[np.int64] = np.maximum.accumulate(arrivals_ns - work_ns) + work_ns + service_ns
    return ends
