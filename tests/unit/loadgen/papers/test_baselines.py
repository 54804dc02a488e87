"""Fixed batches of two models on one partition, and models at their home nodes."""

import pytest

from sluice.batcher.interface.instance_config import InstanceRule
from sluice.loadgen.papers import home_nodes
from sluice.loadgen.papers.baselines import PAIR, STATIC, SharedPartition, share_partition
from sluice.models.units import NS_PER_S


def shared(first: float, second: float) -> SharedPartition:
    return share_partition(1, dict(zip(PAIR, (first, second), strict=True)), NS_PER_S // 4)


def test_models_that_overload_their_partition_have_equal_shares_of_it_whatever_comes() -> None:
    crowded = shared(1.0, 4.0)
    assert crowded.ratio == pytest.approx(1, abs=0.1)
    assert crowded.time_ns["a:1"] / crowded.time_ns["b:1"] == pytest.approx(1, abs=0.1)
    assert crowded.refused["b:1"] > crowded.refused["a:1"] > 0


def test_batches_have_allowed_sizes_and_no_request_is_refused_without_overload() -> None:
    calm = shared(0.3, 0.3)
    assert calm.sizes.keys() <= set(STATIC.allowed_batch_sizes)
    assert sum(calm.refused.values()) == 0
    assert 0 < calm.added < 0.5


def test_the_scheduler_finds_models_at_their_homes_and_elsewhere_as_often_as_by_chance() -> None:
    home, anywhere = (home_nodes.play(rule, 1, 300) for rule in (InstanceRule.HOME_HASH, InstanceRule.ROUND_ROBIN))
    assert len(home.starts) == len(anywhere.starts) == 300
    assert home.hits > 3 * anywhere.hits
    assert anywhere.hits / 300 == pytest.approx(home_nodes.HELD / home_nodes.MODELS, abs=0.05)
