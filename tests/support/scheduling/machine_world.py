"""The world of the scheduler state machine: models, pipelines of every kind, and partitions of two speeds."""

import msgspec

from sluice.batcher.interface.config import (
    DeviceShare,
    Limits,
    PartitionConfig,
    PipelineConfig,
    PriorityLevels,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.models.dynamic_batching import QueuePolicy, TimeoutAction
from sluice.models.pipelines.pipeline import Late
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import CERTAINTY, GAINING, MS, cascade, ensemble, model, single

LEVELS = PriorityLevels(
    2,
    2,
    QueuePolicy(max_queue_size=2, default_timeout_us=3000, allow_timeout_override=True),
    {1: QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=1000)},
)
_MODELS = (
    model("small:1", 8, confidences=(CERTAINTY,)),
    model("large:1", 4, confidences=(CERTAINTY,)),
    model("spare:1", 8, confidences=(CERTAINTY,)),
    model("shapes:1", 8),
    model("levels:1", 8, TimeoutConfig((2, 4), 2 * MS, levels=LEVELS)),
    model("ordered:1", 4, TimeoutConfig(preserve_ordering=True), confidences=(CERTAINTY,)),
)
MODELS = tuple(msgspec.structs.replace(each, input_bytes=9_000, output_bytes=1_000) for each in _MODELS)
"""Rows have 10 kB, which matters where a link is slow."""
MAX_BATCH = {config.key: config.max_batch for config in MODELS}
FAST = {
    "small:1": GAINING,
    "large:1": LatencyTable.from_ms({1: 3, 2: 3.5, 4: 6}),
    "spare:1": LatencyTable.from_ms({1: 0.5, 8: 2}),
    "shapes:1": LatencyTable.from_ms({1: 0.1, 8: 0.4}),
    "levels:1": GAINING,
    "ordered:1": LatencyTable.from_ms({1: 1, 4: 3}),
}
SLOW = {
    key: LatencyTable(tuple((rows, 3 * latency_ns) for rows, latency_ns in table.cells)) for key, table in FAST.items()
}
TABLES = {"fast": FAST, "slow": SLOW}
VOTED = PipelineConfig(
    "voted:1",
    (
        StageConfig("a", "small:1", variants=("small:1", "spare:1")),
        StageConfig("b", "large:1"),
        StageConfig("vote", None, (0, 1), confidences=(CERTAINTY,)),
        StageConfig("last", "large:1", (), WhenConfig(2, 0, 0.5)),
        StageConfig("both", None, (2, 3)),
    ),
    slo_ns=20 * MS,
)
EITHER = PipelineConfig(
    "either:1", (StageConfig("any", "small:1", variants=("small:1", "large:1", "spare:1")),), slo_ns=5 * MS, weight=3
)


def recalling(config: PipelineConfig, *stages: int) -> PipelineConfig:
    """A pipeline with the response cache enabled for some stages, given by number."""
    marked = [msgspec.structs.replace(each, uses_cache=number in stages) for number, each in enumerate(config.stages)]
    return msgspec.structs.replace(config, stages=tuple(marked))


PIPELINES = (
    single("small:1"),
    single("small:1", Late.EVICT, name="hard:1"),
    single("shapes:1", keyed=True),
    msgspec.structs.replace(cascade("small:1", "large:1"), slo_ns=12 * MS, weight=2),
    cascade("small:1", "large:1", "small:1", name="long:1", below=0.6, late=Late.EVICT),
    ensemble("small:1", "large:1"),
    ensemble("small:1", "small:1", name="twice:1", late=Late.EVICT),
    VOTED,
    EITHER,
    single("levels:1", keyed=True),
    single("levels:1", Late.EVICT, name="tight:1", keyed=True),
    cascade("ordered:1", "levels:1", name="tiers:1"),
    ensemble("levels:1", "ordered:1", "small:1", name="mixed:1"),
    recalling(single("shapes:1", name="known:1", keyed=True), 0),
    recalling(ensemble("levels:1", "small:1", name="known-in-part:1", late=Late.EVICT), 0, 1),
    recalling(cascade("small:1", "ordered:1", name="known-last:1"), 1),
)
PARTITIONS = (
    PartitionConfig("cpu0", "fast", price=4, device=DeviceShare("shared", 0.6, 1.0)),
    PartitionConfig("cpu1", "slow", device=DeviceShare("shared", 0.3, 1.0)),
    PartitionConfig("cpu2", "slow"),
)
KINDS = {partition.name: partition.kind for partition in PARTITIONS}
LIMITS = Limits(queue_requests=6, memory_bytes=100)
