"""The partitions that a stage may run on by the rule of its plan."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.batcher.fleet.partition_group import planned_kind
from sluice.batcher.interface.plan_data import FixedOption
from sluice.batcher.state import PartitionGroup, StageState


def ruled_groups(stage: StageState) -> Sequence[PartitionGroup]:
    """The groups of the kind that the plan of a model stage has fixed; all groups where it has not, or none is up."""
    model, rule = stage.model, stage.rule
    assert model is not None, "a combiner runs nowhere"
    if not isinstance(rule, FixedOption) or not model.by_deadline:
        return model.groups
    return [each for each in model.groups if each.ready_count and planned_kind(each) == rule.kind] or model.groups
