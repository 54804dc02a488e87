"""One gateway over 64 emulated accelerators behind worker servers, over TCP.

`python -m benchmarks.support.remote_fleet` looks for the rate at which the gateway is the limit.
"""

from typing import Any

from benchmarks.conftest import Report
from benchmarks.support.clients import client_processes
from benchmarks.support.remote_fleet import ACCELERATORS, CLIENTS, OFFERED, Outcome, offer

SECONDS = 10.0


def test_a_fleet_of_remote_accelerators(benchmark: Any, report: Report) -> None:
    """The share of the summed rate that is answered in time, and the cost of a request for the gateway."""

    def run() -> Outcome:
        with client_processes(CLIENTS) as pool:
            return offer(pool, ACCELERATORS, 1.0, SECONDS)

    outcome = benchmark.pedantic(run, rounds=1)
    share = f"{outcome.goodput / outcome.offered:.1%} of {outcome.offered:.0f}/s"
    report(f"{ACCELERATORS} remote accelerators at {OFFERED:.0%} of their rate: in time", share, ">= 99%")
    report("the same: p99", f"{outcome.p99_ms:.0f} ms", f"<= {outcome.slo_ms:.0f} ms")
    report("the same: refused or failed", f"{outcome.failed}", "0")
    report("the same: processor time of the gateway a request", f"{outcome.cost.gateway_us:.0f} us", "")
    report("the same: time that the gateway waited for a core", f"{outcome.cost.waited:.0%}", "")
