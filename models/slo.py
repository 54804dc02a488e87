"""The deadline of a request, from the objectives that apply to it."""

import math

from sluice.models.errors import RequestError
from sluice.models.units import ms_to_ns

MAX_SLO_MS = 86_400_000.0
"""Longer objectives are cut to this one (a day), so that every deadline fits the 64 bits of the journal."""

MAX_START_AFTER_MS = 60_000.0
"""The most milliseconds by which a request may be sent ahead of its time: it takes memory until then."""


def deadline_ns(
    arrived_ns: int,
    request_slo_ms: object,
    pipeline_slo_ms: float | None,
    transport_budget_ns: int | None,
    default_slo_ms: float,
) -> int:
    """Return the time when the answer is due: the earliest limit of the request, the pipeline and the transport.

    `request_slo_ms` is the request's `slo_ms` as the client sent it, None without one; RequestError if it is not a
    finite positive number. `default_slo_ms` applies when neither request nor pipeline has an objective.
    `transport_budget_ns` is the time left by the client's own deadline; it may be negative.
    """
    objectives = [] if pipeline_slo_ms is None else [pipeline_slo_ms]
    if request_slo_ms is not None:
        objectives.append(_milliseconds(request_slo_ms))
    due = arrived_ns + ms_to_ns(min(*(objectives or [default_slo_ms]), MAX_SLO_MS))
    return due if transport_budget_ns is None else min(due, arrived_ns + transport_budget_ns)


def _milliseconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise RequestError(f"parameter 'slo_ms': expected a finite number of milliseconds above 0, got {value!r:.80}")
    return min(value, MAX_SLO_MS)
