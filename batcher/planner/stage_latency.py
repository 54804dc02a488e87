"""The stage latency model: the waits that batching and queueing add to the time of a batch."""

import math
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from sluice.models.slo import MAX_SLO_MS
from sluice.models.units import NS_PER_S, ms_to_ns

RHO_MAX = 0.9
"""Highest utilisation that is planned for: above it the predicted tail is too short."""
LONGEST_WAIT_NS = ms_to_ns(MAX_SLO_MS)
"""No objective is longer, so that a longer wait counts as this one."""
_Z99 = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


class StageLatency(NamedTuple):
    """Predicted latency of a row in one stage, waits included.

    `utilisation` is that of its servers in full batches; `rows` is the size of a typical batch. `rows99` is the size
    that takes longest, from a typical batch up to a large one, since larger batches may be quicker. `p99_ns` is the
    time of such a batch plus the longest of three waits: for the batch to fill, for a server while full batches queue,
    for the running batch. The wait for stages beside it, `beside99_ns`, is added.
    """

    p50_ns: int
    p99_ns: int
    utilisation: float
    rows: int
    rows99: int = 1
    fill99_ns: int = 0
    queue99_ns: int = 0
    running99_ns: int = 0
    beside99_ns: int = 0


def stage_latency(
    service_ns: Callable[[int], int],
    batch: int,
    rate: float,
    servers: float,
    max_wait_ns: int | None = None,
    *,
    within_ns: int = LONGEST_WAIT_NS,
    rho_max: float = RHO_MAX,
) -> StageLatency | None:
    """Latency of a stage in batches of up to `batch` rows; one of b rows takes `service_ns(b)` on one of `servers`.

    Rows arrive as a Poisson process of `rate` a second. The result is None when there is no bound: the rate is above
    `rho_max` of what the servers can do in full batches. As the rate goes to 0, the latency goes to that of a row which
    is alone. `max_wait_ns` is the time that the first row of a batch waits for others while a server is idle. It
    decides how filling counts:

    - None: until the batch is full. The longer of two waits, for the batch to fill and for a server, is added to the
      batch's time. They do not add up: batches fill slowly at low load, and queue at high load. A batch that does not
      fill in time to end `within_ns`, the objective, closes earlier by its deadline: then filling does not count.
    - 0: filling does not count, as under the policy `deadline` with objective `latency`, which never delays a lone row.
      A row waits for the running batch, and the rows that arrive meanwhile are the next batch, full or not.
    - In between: filling counts up to that time, and batches may have any size.

    A full batch's wait for a server is the approximation of Allen and Cunneen with Sakasegawa's exponent, for batches
    that arrive with Erlang gaps and take a constant time; its tail is assumed to be exponential. O(sqrt batch).
    """
    full_s = service_ns(batch) / NS_PER_S
    utilisation = rate * full_s / (servers * batch)
    if utilisation > rho_max:
        return None
    fill99_s = _fill_s(_gamma_p99(batch - 1), rate)
    if max_wait_ns is None:
        if (full_s + fill99_s) * NS_PER_S > min(within_ns, LONGEST_WAIT_NS):
            max_wait_ns = 0
    else:
        max_wait_ns = min(max_wait_ns, LONGEST_WAIT_NS)
    if rate <= 0:
        fill_ns = max_wait_ns or 0 if batch > 1 else 0
        alone_ns = service_ns(1) + fill_ns
        return StageLatency(alone_ns, alone_ns, 0.0, 1, fill99_ns=fill_ns)
    exponent = math.sqrt(2 * (servers + 1)) - 1
    queues = utilisation**exponent
    mean_wait_s = full_s / (2 * batch * servers * (1 - utilisation))
    fill50_s = _fill_s((batch - 1) / 2, rate)
    size50 = size99 = batch
    busy = 0.0
    if max_wait_ns is not None:
        max_wait_s = max_wait_ns / NS_PER_S
        fill50_s, fill99_s = min(fill50_s, max_wait_s), min(fill99_s, max_wait_s)
        gathered = min(1 + rate * max_wait_s, batch)
        per_server = rate / servers / NS_PER_S
        busy = min(per_server * service_ns(int(gathered)) / gathered, 1.0) ** exponent
        # With every server busy, batches grow until one is what arrives while a server ends its batch.
        steady = 1 + bisect_left(range(1, batch), True, key=lambda rows: rows >= per_server * service_ns(rows))
        size50 = max(steady, int(gathered))
        cycle_rows = max(per_server * service_ns(steady), rate * max_wait_s)
        large = min(max(math.ceil(cycle_rows + _Z99 * math.sqrt(cycle_rows)), size50), batch)
        size99 = max(range(large, size50 - 1, -1), key=service_ns)

    def waits_ns(beyond: float, size: int, fill_s: float) -> list[int]:
        queue_s = mean_wait_s * math.log(queues / beyond) if queues > beyond else 0.0
        # The wait for a running batch is uniform over its time; the first server to finish takes the row.
        running_s = service_ns(size) / NS_PER_S * (1 - (beyond / busy) ** (1 / servers)) if busy > beyond else 0.0
        return [round(min(wait_s * NS_PER_S, LONGEST_WAIT_NS)) for wait_s in (fill_s, queue_s, running_s)]

    waits99_ns = waits_ns(0.01, size99, fill99_s)
    p50_ns = service_ns(size50) + max(waits_ns(0.5, size50, fill50_s))
    return StageLatency(p50_ns, service_ns(size99) + max(waits99_ns), utilisation, size50, size99, *waits99_ns)


def _fill_s(rows: float, rate: float) -> float:
    """The time in which `rows` rows arrive."""
    if not rows:
        return 0.0
    return rows / rate if rate > 0 else math.inf


def _gamma_p99(shape: int) -> float:
    """The 99th percentile of the time until `shape` arrivals at rate 1, by Wilson and Hilferty."""
    if not shape:
        return 0.0
    ninth = 1 / (9 * shape)
    return shape * (1 - ninth + _Z99 * math.sqrt(ninth)) ** 3
