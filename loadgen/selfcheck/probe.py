"""Runs against a null server, whose figures are the client's alone."""

import time
from typing import NamedTuple

import msgspec
import numpy as np

from sluice.loadgen.records.record import Record, Status
from sluice.loadgen.records.statistics import Distribution, query_statistics
from sluice.loadgen.records.validity import client_limits
from sluice.loadgen.run.issuer import Issuer
from sluice.loadgen.target.base import TargetRequest
from sluice.loadgen.target.open import open_target
from sluice.loadgen.traffic.arrivals import Arrivals
from sluice.loadgen.traffic.pacing import OPEN_LOOP, Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.traffic.seeds import generator
from sluice.models.units import NS_PER_S, NS_PER_US

OUTSTANDING = 64
"""Queries that are open at a time in a closed loop."""
_CONNECTIONS = 256
_SAMPLES = 64
_WARM_UP = 0.1
"""Share of a probe that is left out."""
_DRAIN_TIMEOUT_S = 2.0
_CLOSED_LOOP_QUERIES = 1 << 16


class ClientProbe(msgspec.Struct, frozen=True):
    """One run at one rate. `reasons` say why the client did not keep the rate; empty where it did."""

    rate: float
    queries: int
    lateness_ms: Distribution | None
    idle_lateness_ms: float
    cpu_us_per_query: float
    cpu_share: float | None
    reasons: tuple[str, ...]


class Ceiling(msgspec.Struct, frozen=True):
    """A closed loop: queries a second, each of which follows an answer, and their cost."""

    per_s: float
    cpu_us_per_query: float


class _Run(NamedTuple):
    record: Record
    issuer: Issuer
    cpu_ns: int


async def probe(url: str, rate: float, duration_s: float, seed: int) -> ClientProbe:
    """Send Poisson arrivals at a rate, and judge the client by the rule of every run."""
    due_ns = Arrivals().draw(rate, duration_s, None, generator(seed, "arrivals"))
    sample = np.arange(len(due_ns), dtype=np.int64) % _SAMPLES
    record, issuer, cpu_ns = await _drive(url, Schedule(due_ns, sample), OPEN_LOOP)
    metrics = query_statistics(record, 99.0, duration_s * _WARM_UP)
    reasons = client_limits(metrics, None, issuer.cpu_share, issuer.baseline_lateness_ms)
    if unanswered := int((record.status != Status.OK).sum()):
        reasons.append(f"{unanswered} of {len(record)} queries were not answered: {record.reasons}")
    return ClientProbe(
        rate,
        len(record),
        metrics.lateness_ms,
        issuer.baseline_lateness_ms,
        cpu_ns / NS_PER_US / max(1, len(record)),
        issuer.cpu_share,
        tuple(reasons),
    )


async def closed_loop(url: str, duration_s: float) -> Ceiling:
    """Keep `OUTSTANDING` queries open."""
    schedule = Schedule(
        np.zeros(_CLOSED_LOOP_QUERIES, np.int64), np.arange(_CLOSED_LOOP_QUERIES, dtype=np.int64) % _SAMPLES
    )
    pacing = Pacing(outstanding=OUTSTANDING, from_issue=True, repeats=True, max_ns=duration_s * NS_PER_S)
    record, _, cpu_ns = await _drive(url, schedule, pacing)
    answered = int((record.status == Status.OK).sum())
    last_ns = int(record.done_ns.max(initial=1))
    return Ceiling(answered * NS_PER_S / last_ns, cpu_ns / NS_PER_US / max(1, answered))


async def _drive(url: str, schedule: Schedule, pacing: Pacing) -> _Run:
    target = open_target(url, connections=_CONNECTIONS, explain_every=0)
    record = Record.of(schedule)
    issuer = Issuer(record, pacing)
    request = TargetRequest("null", {"x": np.zeros((1, 4), np.float32)})
    try:
        await target.prepare(dict.fromkeys(range(_SAMPLES), request), issuer, keep_answers=False)
    except BaseException:
        await target.close()
        raise
    cpu_ns = time.process_time_ns()
    record = await issuer.run(target, _DRAIN_TIMEOUT_S)
    if issuer.interrupted:  # the run took the interrupt for itself alone, but it is for the whole check
        raise KeyboardInterrupt
    return _Run(record, issuer, time.process_time_ns() - cpu_ns)
