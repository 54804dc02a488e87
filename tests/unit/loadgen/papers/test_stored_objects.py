import pytest

from sluice.batcher.interface.instance_config import InstanceRule
from sluice.loadgen.papers.experiment import Effort, GateVerdict
from sluice.loadgen.papers.stored_objects import HELD, NODES, OBJECTS, ObjectReads, finding, play_all


@pytest.fixture(scope="module")
def reads() -> dict[InstanceRule, list[ObjectReads]]:
    return play_all(Effort(seeds=2, quick=True))


def test_stages_run_where_the_object_is_that_they_read(reads: dict[InstanceRule, list[ObjectReads]]) -> None:
    assert finding(reads).verdict is GateVerdict.MET
    for run in reads[InstanceRule.LOCALITY]:
        assert run.loads == OBJECTS, "each object is loaded once, and none is evicted"
        assert run.in_time == 1.0


def test_a_rule_that_does_not_look_at_memory_finds_the_object_by_chance(
    reads: dict[InstanceRule, list[ObjectReads]],
) -> None:
    by_chance = HELD / OBJECTS
    assert NODES * HELD > OBJECTS, "there is memory for all"
    assert all(run.hit_rate < 1.2 * by_chance for run in reads[InstanceRule.BALANCE])
    assert finding({InstanceRule.LOCALITY: reads[InstanceRule.BALANCE]}).verdict is GateVerdict.MISSED
