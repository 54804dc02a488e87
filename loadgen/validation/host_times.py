"""Estimates of a gateway's host times, the `host` of a simulation, from live runs and the server's journal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.simulation.simulation_file import HostSettings
from sluice.loadgen.validation.server_activity import GatewayActivity, ObservedBatch
from sluice.loadgen.validation.service_times import Floats, quantiles
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S, NS_PER_US

QUANTILE_STEPS = 100
"""Steps of equal probability between the quantiles of jitter."""
_REWEIGHTINGS = 50

MAX_LOOP_SHARE = 0.5
"""Most of a batch's transport that the gateway's event loop is busy: the worker needs time to wake, read and write."""

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LoadTimings:
    """A live run with the gateway's activity in it and the CPU time of the core of the gateway's event loop."""

    result: RunResult
    activity: GatewayActivity
    cpu_ns: int

    @property
    def batches(self) -> list[ObservedBatch]:
        """The batches that were dispatched after the warm-up."""
        since_ns = self.result.start_ns + self._warmup_ns
        return [batch for batch in self.activity.batches if batch.dispatched_ns >= since_ns]

    @property
    def request_transit_ns(self) -> Floats:
        """Time from due to the scheduler of each answered query, by arrival."""
        record = self.result.record
        answered = record.status == Status.OK
        arrived_ns = np.array(self.activity.arrived_ns, np.int64)
        if len(arrived_ns) != len(record):
            return np.empty(0)
        return self._settled((arrived_ns - self.result.start_ns - record.due_ns)[answered])

    @property
    def answer_transit_ns(self) -> Floats:
        """Time from the scheduler to the client of each answer, by completion."""
        record = self.result.record
        done_ns = np.sort(record.done_ns[record.status == Status.OK])
        completed_ns = np.array(self.activity.completed_ns, np.int64)
        if len(completed_ns) != len(done_ns):
            return np.empty(0)
        return self._settled(done_ns + self.result.start_ns - completed_ns)

    def _settled(self, times_ns: Nanoseconds) -> Floats:
        """The times of the queries that were due after the warm-up."""
        record = self.result.record
        settled: Floats = times_ns[record.due_ns[record.status == Status.OK] >= self._warmup_ns].astype(float)
        return settled

    @property
    def _warmup_ns(self) -> int:
        return round(self.result.config.warmup_s * NS_PER_S)


def host_settings(unloaded: Sequence[LoadTimings], loads: Sequence[LoadTimings]) -> HostSettings:
    """Estimate the host times of requests and batches.

    CPU time comes from all `loads` and is split by least squares between requests and batches. The path of a request
    has four parts: from the client to the scheduler, to an idle worker and back, and to the client again. The first
    three are taken from all loads, and the last from `unloaded` runs, whose requests do not meet each other. The event
    loop is assumed to be busy for the same share of each part, at most `MAX_LOOP_SHARE` of the transport to a worker
    and back, and idle for the rest. Raises ConfigError when no request of an unloaded run was answered.
    """
    batches = [batch for load in loads for batch in load.batches]
    answered = _answered(unloaded)
    if not answered:
        raise ConfigError("calibration: no request of the unloaded runs was answered; expected a rate that is served")
    answer_transit_ns = _median(np.concatenate([load.answer_transit_ns for load in answered]))
    transits_ns = [load.request_transit_ns for load in loads]
    request_transit_ns = _median([_median(times_ns) for times_ns in transits_ns if len(times_ns)])
    request_ns, batch_ns = cpu_costs_ns(loads)
    out_ns, row_ns, handle_ns = _dispatch_ns(batches)
    back_ns = _median([batch.reported_ns - batch.ended_ns for batch in batches if not batch.queued])
    path_ns = request_transit_ns + out_ns + handle_ns + row_ns + back_ns + answer_transit_ns
    busy = min(MAX_LOOP_SHARE, (request_ns + batch_ns) / path_ns)
    each_ns = max(request_ns - row_ns - 2 * handle_ns, 0.0) / 2
    receive_ns = min(each_ns, request_transit_ns)
    answer_ns = min(each_ns, max(answer_transit_ns - handle_ns, 0.0))
    deliver_ns = max(answer_transit_ns - handle_ns - answer_ns, 0.0)
    answers_ns = min(max(batch_ns - busy * (out_ns + back_ns), 0.0), deliver_ns)
    times_ns = {
        "send": request_transit_ns - receive_ns,
        "receive": receive_ns,
        "handle": handle_ns,
        "dispatch": busy * out_ns,
        "dispatch_row": row_ns,
        "hand_off": (1 - busy) * out_ns,
        "between": _between_ns(batches),
        "return": (1 - busy) * back_ns,
        "complete": busy * back_ns,
        "answers": answers_ns,
        "answer": answer_ns,
        "deliver": deliver_ns - answers_ns,
    }
    return HostSettings(**{f"{name}_us": round(value / NS_PER_US, 2) for name, value in times_ns.items()})


def transit_jitter_us(unloaded: Sequence[LoadTimings]) -> tuple[float, ...]:
    """Quantiles of a request's extra time outside the gateway: the `ways_us` of a simulation file."""
    return _spread_us(
        np.concatenate([load.request_transit_ns + load.answer_transit_ns for load in _answered(unloaded)])
    )


def _answered(unloaded: Sequence[LoadTimings]) -> list[LoadTimings]:
    """The runs with answers whose transit times are known in both directions."""
    return [load for load in unloaded if len(load.request_transit_ns) == len(load.answer_transit_ns) > 0]


def transport_jitter_us(unloaded: Sequence[LoadTimings]) -> tuple[float, ...]:
    """Quantiles of a batch's extra time on the way to a worker or back: the `strays_us` of a simulation file."""
    batches = [batch for load in unloaded for batch in load.batches if not batch.queued]
    out_ns = np.array([batch.started_ns - batch.dispatched_ns for batch in batches], float)
    back_ns = np.array([batch.reported_ns - batch.ended_ns for batch in batches], float)
    return _spread_us(np.concatenate([out_ns - np.median(out_ns), back_ns - np.median(back_ns)]))


def _spread_us(times_ns: Floats) -> tuple[float, ...]:
    """Quantiles of the differences of times from their median."""
    values = quantiles(np.sort(times_ns - np.median(times_ns)), QUANTILE_STEPS)
    return tuple(np.round(values / NS_PER_US, 2).tolist())


def cpu_costs_ns(loads: Sequence[LoadTimings]) -> tuple[float, float]:
    """CPU time of a request and of a batch, beside a constant for each run: least squares of relative errors."""
    used = np.array([load.cpu_ns for load in loads], float)
    counts = np.array([(1, len(load.activity.arrived_ns), len(load.activity.batches)) for load in loads], float)
    _, request_ns, batch_ns = np.linalg.lstsq(counts / used[:, np.newaxis], np.ones(len(used)), rcond=None)[0].tolist()
    return max(request_ns, 0.0), max(batch_ns, 0.0)


def _dispatch_ns(batches: Sequence[ObservedBatch]) -> tuple[float, float, float]:
    """Time from dispatch to start on an idle partition: a constant, and parts for each row and concurrent request."""
    direct = [batch for batch in batches if not batch.queued]
    causes = np.array([(1, batch.rows, batch.concurrent) for batch in direct], float)
    took_ns = np.array([batch.started_ns - batch.dispatched_ns for batch in direct], float)
    weights = np.ones(len(direct))
    # Least absolute errors by reweighting: now and then a batch waits for a core for milliseconds.
    for _ in range(_REWEIGHTINGS):
        found = np.linalg.lstsq(causes * weights[:, np.newaxis], took_ns * weights, rcond=None)[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(took_ns - causes @ found), NS_PER_US))
    out_ns, row_ns, handle_ns = np.maximum(found, 0.0).tolist()
    return out_ns, row_ns, handle_ns


def _between_ns(batches: Sequence[ObservedBatch]) -> float:
    """Time of a worker from the end of a batch to the start of the next one, which is already there."""
    gaps = [
        batch.started_ns - batch.previous_end_ns
        for batch in batches
        if batch.queued and batch.previous_end_ns is not None and batch.dispatched_ns < batch.previous_end_ns
    ]
    return _median(gaps) if gaps else 0.0


def _median(values: Sequence[float] | Floats) -> float:
    return float(np.median(values))
