"""The cost of a run of `llama`, and the cost of its rows in full batches and on the cheapest partitions."""

from collections import Counter

import pytest

from sluice.loadgen.papers.engines.two_paths import PRICES, ROW_MS, played

EXACT = {(kind, model): 1.0 for kind in PRICES for model in ROW_MS}


@pytest.mark.parametrize(
    ("kind", "full"),
    [
        ("gpu", 28.5),  # 5 * 12 ms * (0.6 + 0.4 * 8) / 8 rows
        ("cpu", 91.25),  # 100 ms * (0.1 + 0.9 * 8) / 8 rows
    ],
)
def test_full_batches_on_the_cheapest_kind_are_the_least_that_rows_cost(kind: str, full: float) -> None:
    run = played(1.0, 0.4, Counter({(kind, "detect", 1): 3, (kind, "detect", 5): 1}), EXACT, requests=8)
    assert (run.cost, run.rows) == (50.0, 2.0)
    assert run.full == pytest.approx(full)
    assert run.cheapest == pytest.approx(28.5)
