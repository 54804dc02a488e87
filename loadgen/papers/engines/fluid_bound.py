"""A bound on the requests that can be in time: all are known, and stages flow through partitions like a fluid.

It is no schedule. Requests of an application are taken together, each stage is spread over batch sizes and kinds of
partitions in any parts, and a kind of partitions has only to have the time for all of it between the first request and
the last deadline. What is left is a linear program: the stages of a request take no longer than its objective on
average, and the batches take no more time than there is. By weak duality every price of a second of each kind, and of
the requests' own time, gives a bound; the best of many prices is returned (a projected subgradient method).
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

STEPS = 600


class FlowingRequests(msgspec.Struct, frozen=True):
    """The requests of one application: their number, objective in seconds, and the models of their stages."""

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
    each kind, (kinds,).
    """
    prices = np.zeros(len(capacity_s))
    own = np.zeros(len(requests))
    best = float(sum(each.count for each in requests))
    for step in range(1, STEPS + 1):
        bound = float(prices @ capacity_s)
        price_slope, own_slope = capacity_s.copy(), np.zeros(len(requests))
        for index, each in enumerate(requests):
            worth, used, took_s = 1 + own[index] * each.objective_s, np.zeros(len(capacity_s)), 0.0
            for model in each.stages:
                time_s = batch_s[model]
                price = prices[:, None] * time_s / np.asarray(sizes) + own[index] * time_s
                kind, size = divmod(int(price.argmin()), len(sizes))
                worth -= price[kind, size]
                used[kind] += time_s[kind, size] / sizes[size]
                took_s += time_s[kind, size]
            if worth > 0:
                bound += each.count * worth
                price_slope -= each.count * used
                own_slope[index] = each.count * (each.objective_s - took_s)
        best = min(best, bound)
        length = float(np.sqrt(price_slope @ price_slope + own_slope @ own_slope))
        if not length:
            break
        prices = np.maximum(prices - price_slope / length / np.sqrt(step), 0.0)
        own = np.maximum(own - own_slope / length / np.sqrt(step), 0.0)
    return best
