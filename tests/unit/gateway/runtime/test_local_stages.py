"""A combiner that gave members up says how many it has joined: those that are there when it joins them."""

from types import SimpleNamespace
from typing import Any

import pytest

from sluice.batcher.interface.config import StageConfig
from sluice.batcher.interface.decisions import CombineOutputs, Member
from sluice.batcher.interface.events import AnyEvent, OutputsCombined, RequestArrived
from sluice.gateway.observability.meters import PipelineMeter
from sluice.gateway.observability.traces.trace import PartialJoin, Trace
from sluice.gateway.runtime.local_stages import LocalStages

STAGES = (StageConfig("a", "a:1"), StageConfig("b", "b:1"), StageConfig("both", None, (0, 1), partial=True))


@pytest.mark.parametrize(
    ("absent", "joined", "partial"),
    [
        ((), 2, ()),
        ((1,), 1, (PartialJoin("both", 1, 2),)),
        ((1,), 2, ()),  # it ended between the decision and the join
    ],
)
def test_a_member_that_has_ended_when_they_are_joined_is_not_missing(
    absent: tuple[int, ...], joined: int, partial: tuple[PartialJoin, ...]
) -> None:
    trace = Trace("", RequestArrived(7, "p:1", 1, 9), 0, STAGES)
    opened: Any = {7: SimpleNamespace(trace=trace, meter=PipelineMeter([stage.name for stage in STAGES]))}
    executor: Any = SimpleNamespace(combine=lambda members: [((), "key", joined) for _ in members])
    events: list[AnyEvent] = []
    LocalStages(opened, executor, events.append).combine([CombineOutputs(Member(7, 2, 1), absent)])
    assert events == [OutputsCombined(7, 2, (), "key")]
    assert trace.partial == partial
    assert opened[7].meter.partial_joins == len(partial)
