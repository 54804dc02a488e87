"""The order in which nodes or partitions are tried for a model is that of OpenWhisk's load balancer."""

import pytest

from sluice.batcher.fleet.home_order import home_order, name_hash


def test_the_order_of_nodes_is_that_of_openwhisk() -> None:
    """Its own example: 13 modulo 10 is the home, 3; of the steps 1, 3, 7, 9 that are coprime to 10, 13 chooses 3."""
    assert home_order(10, 13) == [3, 6, 9, 2, 5, 8, 1, 4, 7, 0]


@pytest.mark.parametrize("nodes", range(1, 30))
def test_every_node_comes_once_whatever_the_hash_is(nodes: int) -> None:
    for hashed in (0, 1, 13, 97, 2**31):
        order = home_order(nodes, hashed)
        assert sorted(order) == list(range(nodes))
        assert order[0] == hashed % nodes


def test_there_is_no_order_without_nodes() -> None:
    assert home_order(0, 13) == []


def test_names_have_the_hashes_that_java_gives_them() -> None:
    """The last one is negative in Java, and as far from 0 as it can be."""
    assert [name_hash(name) for name in ("", "abc", "polygenelubricants")] == [0, 96354, 2**31]
