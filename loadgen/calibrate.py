"""The parameters of a simulation, out of loads that a live server was measured under."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadgen.live_steps import Activity, BatchRun
from loadgen.record import Status
from loadgen.result import RunResult
from loadgen.target.simulation_file import HostSettings
from models.errors import ConfigError
from models.units import NS_PER_MS, NS_PER_US

SERVICE_STEPS, WAYS_STEPS = 20, 100
"""Equal steps of probability between quantiles."""
_LEAST_BATCHES = 5
"""A batch size that ran less often has no times of its own."""

_REWEIGHTINGS = 50

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """A live run, what the gateway did in it, and the processor time of the core that the gateway's loop is on."""

    result: RunResult
    activity: Activity
    cpu_ns: int


def host_settings(lone: Sequence[Load], loads: Sequence[Load]) -> HostSettings:
    """What requests and batches take on the host.

    Processor time comes from all `loads`: it is split by least squares between requests and batches. The way of a
    request has three parts: to an idle worker and back, as they are under all loads, and outside of the gateway's
    scheduler, as it is for `lone` requests. The processor is taken to be busy for the same share of each, and nobody
    is with the rest. Raises ConfigError when no lone request was answered.
    """
    batches = [batch for load in loads for batch in load.activity.batches]
    inside_ns = [took_ns for load in lone for took_ns in load.activity.inside_ns]
    if not inside_ns:
        raise ConfigError("calibration: no lone request was answered; expected a rate of the model at which some are")
    request_ns, batch_ns = processor_ns(loads)
    out_ns, row_ns, handle_ns = _dispatch_ns(batches)
    each_ns = max(request_ns - row_ns - 2 * handle_ns, 0.0) / 2
    back_ns = _median([batch.noticed_ns - batch.ended_ns for batch in batches if not batch.queued])
    seen_ns = np.concatenate([latencies_ns(load.result) for load in lone])
    outside_ns = _median(seen_ns.tolist()) - _median(inside_ns)
    busy = min(1.0, (request_ns + batch_ns) / (out_ns + handle_ns + row_ns + back_ns + outside_ns))
    answers_ns = max(batch_ns - busy * (out_ns + back_ns), 0.0)
    rest_ns = max(outside_ns - 2 * each_ns - handle_ns - answers_ns, 0.0)
    times_ns = {
        "send": rest_ns / 2,
        "receive": each_ns,
        "handle": handle_ns,
        "dispatch": busy * out_ns,
        "dispatch_row": row_ns,
        "hand_off": (1 - busy) * out_ns,
        "between": _between_ns(batches),
        "return": (1 - busy) * back_ns,
        "complete": busy * back_ns,
        "answers": answers_ns,
        "answer": each_ns,
        "deliver": rest_ns / 2,
    }
    return HostSettings(**{f"{name}_us": round(value / NS_PER_US, 2) for name, value in times_ns.items()})


def ways_us(lone: Sequence[Load]) -> tuple[float, ...]:
    """How much longer than usual lone requests are on their ways: quantiles as `SimulationFile` takes them."""
    ways_ns: list[float] = []
    for load in lone:
        record, served_ns = load.result.record, load.activity.served_ns
        order = np.argsort(record.done_ns[record.status == Status.OK], kind="stable")
        # Lone requests are answered in the order in which they were completed.
        if len(order) == len(served_ns):
            ways_ns += (latencies_ns(load.result)[order] - served_ns).tolist()
    if not ways_ns:
        return ()
    quantiles = _quantiles(np.sort(np.array(ways_ns) - np.median(ways_ns)), WAYS_STEPS)
    return tuple(np.round(quantiles / NS_PER_US, 2).tolist())


def processor_ns(loads: Sequence[Load]) -> tuple[float, float]:
    """Processor time of a request and of a batch, besides what every run takes: least squares of relative errors."""
    used = np.array([load.cpu_ns for load in loads], float)
    counts = np.array([(1, load.activity.requests, len(load.activity.batches)) for load in loads], float)
    _, request_ns, batch_ns = np.linalg.lstsq(counts / used[:, np.newaxis], np.ones(len(used)), rcond=None)[0].tolist()
    return max(request_ns, 0.0), max(batch_ns, 0.0)


def service_quantiles_ms(runs: Sequence[Sequence[BatchRun]]) -> dict[int, tuple[float, ...]]:
    """By rows, the times of one model's batches in several runs as `ServiceTimes` takes them.

    Every size has its own median; how times spread about it is taken from all sizes of the same power of two. The
    spread is that of a usual run, each quantile the median of those of the runs: a slow spell of the machine is in one
    run and not in the others, and would otherwise be in every simulated one.
    """
    by_rows: dict[int, list[int]] = {}
    for batch in itertools.chain(*runs):
        by_rows.setdefault(batch.rows, []).append(batch.ended_ns - batch.started_ns)
    often = {rows: times for rows, times in by_rows.items() if len(times) >= _LEAST_BATCHES}
    medians = {rows: _median(times) for rows, times in sorted((often or by_rows).items())}
    ratios: dict[int, list[list[float]]] = {}
    for batches in runs:
        of_run: dict[int, list[float]] = {}
        for batch in batches:
            if (median := medians.get(batch.rows)) is not None:
                of_run.setdefault(batch.rows.bit_length(), []).append((batch.ended_ns - batch.started_ns) / median)
        for size, values in of_run.items():
            ratios.setdefault(size, []).append(values)
    spreads = {size: _usual_quantiles(values) for size, values in ratios.items()}
    return {
        rows: tuple(np.round(spreads[rows.bit_length()] * median / NS_PER_MS, 4).tolist())
        for rows, median in medians.items()
    }


def _usual_quantiles(runs: Sequence[Sequence[float]]) -> Floats:
    """The median over the runs of each quantile; of all values together where no run has enough for its own."""
    enough = [values for values in runs if len(values) >= SERVICE_STEPS] or [list(itertools.chain(*runs))]
    quantiles: Floats = np.median([_quantiles(np.sort(values), SERVICE_STEPS) for values in enough], axis=0)
    return quantiles


def _quantiles(values: Floats, steps: int) -> Floats:
    """Quantiles of ascending values at equal steps, the largest so that the last step has the right mean."""
    quantiles: Floats = np.quantile(values, np.linspace(0, 1, steps + 1))
    tail = max(1, len(values) // steps)
    quantiles[-1] = max(2 * values[-tail:].mean() - quantiles[-2], quantiles[-2])
    return quantiles


def latencies_ns(result: RunResult) -> npt.NDArray[np.int64]:
    """From when they were due, of the queries that were answered."""
    record = result.record
    answered = record.status == Status.OK
    return np.asarray(record.done_ns[answered] - record.due_ns[answered], np.int64)


def _dispatch_ns(batches: Sequence[BatchRun]) -> tuple[float, float, float]:
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


def _between_ns(batches: Sequence[BatchRun]) -> float:
    """What a worker takes from the end of a batch to the beginning of one that waits there already."""
    gaps = [
        batch.started_ns - batch.before_ns
        for batch in batches
        if batch.queued and batch.before_ns is not None and batch.dispatched_ns < batch.before_ns
    ]
    return _median(gaps) if gaps else 0.0


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))
