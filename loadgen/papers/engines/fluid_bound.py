"""A bound on the requests that can be in time: all are known, and stages flow through partitions like a fluid.

It is no schedule. Each request that is in time has a path: a kind of partition and a batch size for each of its stages.
The bound lets batches fill, and gives each kind of partition all the time between the first request and the last
deadline, in any parts. What is left is a linear program over paths.

Why it is a bound: in any schedule a request's stages run one after the other, so the times of the batches that they run
in add up to no more than its objective: its path is one of those that are tried. A batch of b rows takes a time t of a
partition; give each of its rows t / b. The rows of the requests in time have then no more time of each kind than there
is. So the numbers of requests by path of any schedule are a solution of the program, and no price of a second of each
kind gives less than the program's best (weak duality). The best of many prices is returned, by a projected subgradient
method.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

STEPS = 400
MOST_PATHS = 1_000_000
"""Paths of one application that are tried."""


class FlowingRequests(msgspec.Struct, frozen=True):
    """The requests of one application: their number, objective in seconds, and the models of their stages, a chain."""

    count: int
    objective_s: float
    stages: tuple[str, ...]


def most_in_time(
    requests: Sequence[FlowingRequests],
    batch_s: Mapping[str, npt.NDArray[np.float64]],
    sizes: Sequence[int],
    capacity_s: npt.NDArray[np.float64],
) -> float:
    """No schedule has more of the requests in time; at most their number.

    `batch_s` has for each model the time of a batch, (kinds, sizes), and `capacity_s` the time of all partitions of
    each kind, (kinds,). A batch of a size between `sizes` takes as long as one of the next of them. An application has
    at most `MOST_PATHS` paths.
    """
    used_s = [_paths(each, batch_s, sizes) for each in requests]
    prices = np.zeros(len(capacity_s))
    best = float(sum(each.count for each in requests))
    for step in range(1, STEPS + 1):
        bound, slope = float(prices @ capacity_s), capacity_s.copy()
        for each, used in zip(requests, used_s, strict=True):
            if not len(used):
                continue
            costs = used @ prices
            path = int(costs.argmin())
            if costs[path] < 1:
                bound += each.count * (1 - float(costs[path]))
                slope -= each.count * used[path]
        best = min(best, bound)
        length = float(np.sqrt(slope @ slope))
        if not length:
            break
        # A price that takes all the time of a kind for all requests is as high as prices have to be.
        prices = np.maximum(prices - slope / length * float(np.sqrt(len(prices))) / np.sqrt(step), 0.0)
    return best


def _paths(
    requests: FlowingRequests, batch_s: Mapping[str, npt.NDArray[np.float64]], sizes: Sequence[int]
) -> npt.NDArray[np.float64]:
    """The time of each kind that a row takes, (paths, kinds), on all paths within the objective."""
    kinds = len(next(iter(batch_s.values())))
    took_s, used_s = np.zeros(1), np.zeros((1, kinds))
    for model in requests.stages:
        times_s = batch_s[model]
        of_stage = np.zeros((times_s.size, kinds))
        of_stage[np.arange(times_s.size), np.repeat(np.arange(kinds), len(sizes))] = (times_s / sizes).ravel()
        took_s = (took_s[:, None] + times_s.ravel()).ravel()
        used_s = (used_s[:, None, :] + of_stage).reshape(-1, kinds)
        within = took_s <= requests.objective_s
        took_s, used_s = took_s[within], used_s[within]
        assert len(used_s) <= MOST_PATHS, f"an application has more than {MOST_PATHS} paths"
    return used_s
