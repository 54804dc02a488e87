"""The parameters of a simulation, out of loads that a live server was measured under."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.loadgen.records.record import Status
from sluice.loadgen.run.result import RunResult
from sluice.loadgen.target.simulation_file import HostSettings
from sluice.loadgen.validation.live_steps import Activity, ObservedBatch
from sluice.loadgen.validation.measured_service import Floats, quantiles
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S, NS_PER_US

WAYS_STEPS = 100
"""Equal steps of probability between quantiles."""
_REWEIGHTINGS = 50

LOOP_SHARE = 0.5
"""Most of a way to a worker or back that the gateway is busy: the worker has to wake up, read and write as well."""

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MeasuredLoad:
    """A live run, what the gateway did in it, and the processor time of the core that the gateway's loop is on."""

    result: RunResult
    activity: Activity
    cpu_ns: int

    @property
    def batches(self) -> list[ObservedBatch]:
        """Those that were dispatched after the warm-up."""
        since_ns = self.result.start_ns + self._warmup_ns
        return [batch for batch in self.activity.batches if batch.dispatched_ns >= since_ns]

    @property
    def come_ns(self) -> Floats:
        """What queries that are answered took to the scheduler, in the order in which they came."""
        record = self.result.record
        answered = record.status == Status.OK
        arrived_ns = np.array(self.activity.arrived_ns, np.int64)
        if len(arrived_ns) != len(record):
            return np.empty(0)
        return self._settled((arrived_ns - self.result.start_ns - record.due_ns)[answered])

    @property
    def go_ns(self) -> Floats:
        """What their answers took from the scheduler, likewise."""
        record = self.result.record
        done_ns = np.sort(record.done_ns[record.status == Status.OK])
        completed_ns = np.array(self.activity.completed_ns, np.int64)
        if len(completed_ns) != len(done_ns):
            return np.empty(0)
        return self._settled(done_ns + self.result.start_ns - completed_ns)

    def _settled(self, times_ns: Nanoseconds) -> Floats:
        """Those of the queries that were due after the warm-up."""
        record = self.result.record
        settled: Floats = times_ns[record.due_ns[record.status == Status.OK] >= self._warmup_ns].astype(float)
        return settled

    @property
    def _warmup_ns(self) -> int:
        return round(self.result.config.warmup_s * NS_PER_S)


def host_settings(lone: Sequence[MeasuredLoad], loads: Sequence[MeasuredLoad]) -> HostSettings:
    """What requests and batches take on the host.

    Processor time comes from all `loads`: it is split by least squares between requests and batches. The way of a
    request has four parts: from the client, to an idle worker and back, as they are under a usual load, and back to the
    client, as it is for `lone` requests. The processor is taken to be busy for the same share of each, but for no more
    than `LOOP_SHARE` of the ways to a worker and back, and nobody is with the rest. Raises ConfigError when no lone
    request was answered.
    """
    batches = [batch for load in loads for batch in load.batches]
    answered = _answered(lone)
    if not answered:
        raise ConfigError("calibration: no lone request was answered; expected a rate of the model at which some are")
    go_ns = _median(np.concatenate([load.go_ns for load in answered]))
    come_ns = _median([_median(load.come_ns) for load in loads if len(load.come_ns)])
    request_ns, batch_ns = processor_ns(loads)
    out_ns, row_ns, handle_ns = _dispatch_ns(batches)
    back_ns = _median([batch.noticed_ns - batch.ended_ns for batch in batches if not batch.queued])
    ways_ns = come_ns + out_ns + handle_ns + row_ns + back_ns + go_ns
    busy = min(LOOP_SHARE, (request_ns + batch_ns) / ways_ns)
    each_ns = max(request_ns - row_ns - 2 * handle_ns, 0.0) / 2
    receive_ns = min(each_ns, come_ns)
    answer_ns = min(each_ns, max(go_ns - handle_ns, 0.0))
    deliver_ns = max(go_ns - handle_ns - answer_ns, 0.0)
    answers_ns = min(max(batch_ns - busy * (out_ns + back_ns), 0.0), deliver_ns)
    times_ns = {
        "send": come_ns - receive_ns,
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


def ways_us(lone: Sequence[MeasuredLoad]) -> tuple[float, ...]:
    """How much longer than usual lone requests are outside of the gateway, as `SimulationFile` takes it."""
    return _spread_us(np.concatenate([load.come_ns + load.go_ns for load in _answered(lone)]))


def _answered(lone: Sequence[MeasuredLoad]) -> list[MeasuredLoad]:
    """Those in which requests were answered, each of which is known on both of its ways."""
    return [load for load in lone if len(load.come_ns) == len(load.go_ns) > 0]


def strays_us(lone: Sequence[MeasuredLoad]) -> tuple[float, ...]:
    """How much longer than usual batches of lone requests are on a way to a worker or back: such quantiles."""
    batches = [batch for load in lone for batch in load.batches if not batch.queued]
    out_ns = np.array([batch.started_ns - batch.dispatched_ns for batch in batches], float)
    back_ns = np.array([batch.noticed_ns - batch.ended_ns for batch in batches], float)
    return _spread_us(np.concatenate([out_ns - np.median(out_ns), back_ns - np.median(back_ns)]))


def _spread_us(times_ns: Floats) -> tuple[float, ...]:
    """Quantiles of what times are above (or below) their median."""
    values = quantiles(np.sort(times_ns - np.median(times_ns)), WAYS_STEPS)
    return tuple(np.round(values / NS_PER_US, 2).tolist())


def processor_ns(loads: Sequence[MeasuredLoad]) -> tuple[float, float]:
    """Processor time of a request and of a batch, besides what every run takes: least squares of relative errors."""
    used = np.array([load.cpu_ns for load in loads], float)
    counts = np.array([(1, len(load.activity.arrived_ns), len(load.activity.batches)) for load in loads], float)
    _, request_ns, batch_ns = np.linalg.lstsq(counts / used[:, np.newaxis], np.ones(len(used)), rcond=None)[0].tolist()
    return max(request_ns, 0.0), max(batch_ns, 0.0)


def _dispatch_ns(batches: Sequence[ObservedBatch]) -> tuple[float, float, float]:
    """When a batch begins on a partition that waits for it, and how much later for a row and for a request handled."""
    waited = [batch for batch in batches if not batch.queued]
    causes = np.array([(1, batch.rows, batch.together) for batch in waited], float)
    took_ns = np.array([batch.started_ns - batch.dispatched_ns for batch in waited], float)
    weights = np.ones(len(waited))
    # Least absolute errors, by reweighting: a batch now and then waits for the processor for milliseconds.
    for _ in range(_REWEIGHTINGS):
        found = np.linalg.lstsq(causes * weights[:, np.newaxis], took_ns * weights, rcond=None)[0]
        weights = 1 / np.sqrt(np.maximum(np.abs(took_ns - causes @ found), NS_PER_US))
    out_ns, row_ns, handle_ns = np.maximum(found, 0.0).tolist()
    return out_ns, row_ns, handle_ns


def _between_ns(batches: Sequence[ObservedBatch]) -> float:
    """What a worker takes from the end of a batch to the beginning of one that waits there already."""
    gaps = [
        batch.started_ns - batch.before_ns
        for batch in batches
        if batch.queued and batch.before_ns is not None and batch.dispatched_ns < batch.before_ns
    ]
    return _median(gaps) if gaps else 0.0


def _median(values: Sequence[float] | Floats) -> float:
    return float(np.median(values))
