"""MLPerf's early-stopping test: decides if a run has enough queries for a claim about a percentile.

MLCommons inference rules, "Early stopping". With t misses among n queries the claim "at least the share p of all
queries meets the limit" holds at confidence c when P[Bin(n, 1 - p) <= t] <= 1 - c. That probability is the regularised
incomplete beta function I_p(n - t, t + 1). Tolerance d = 0 and c = 0.99, as in the rules.
"""

import math

CONFIDENCE = 0.99
_MOST_QUERIES = 10**9


def confirmed(queries: int, misses: int, percentile: float) -> bool:
    """True when `misses` out of `queries` confirm that `percentile` % (0 < percentile < 100) meet the limit."""
    q = 1 - percentile / 100
    # At or above the mean the probability is about a half or more, which is never small enough.
    return misses < queries * q and _at_most(misses, queries, q) <= 1 - CONFIDENCE


def queries_needed(misses: int, percentile: float) -> int:
    """The fewest queries that are confirmed with `misses` among them."""
    low, high = misses, 2 * (misses + 1)
    while not confirmed(high, misses, percentile):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if confirmed(middle, misses, percentile) else (middle, high)
    return high


def misses_allowed(queries: int, percentile: float) -> int:
    """The most misses with which `queries` are still confirmed; -1 when they are too few even without one."""
    low, high = -1, math.ceil(queries * (1 - percentile / 100))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if confirmed(queries, middle, percentile) else (low, middle)
    return low


def queries_for_share(share: float, percentile: float) -> int | None:
    """About the fewest queries that are confirmed when the `share` of them misses; None beyond a billion queries."""
    low, high = 0, queries_needed(0, percentile)
    while not confirmed(high, math.ceil(high * share), percentile):
        low, high = high, 2 * high
        if high > _MOST_QUERIES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if confirmed(middle, math.ceil(middle * share), percentile) else (middle, high)
    return high


def _at_most(t: int, n: int, q: float) -> float:
    """P[Bin(n, q) <= t] for t below the mean, where the terms only shrink from t downwards; O(t) at worst."""
    log_top = (
        math.lgamma(n + 1) - math.lgamma(t + 1) - math.lgamma(n - t + 1) + t * math.log(q) + (n - t) * math.log1p(-q)
    )
    term, total = 1.0, 1.0
    for i in range(t, 0, -1):
        term *= i * (1 - q) / ((n - i + 1) * q)
        total += term
        if term < total * 1e-17:
            break
    return math.exp(log_top) * total
