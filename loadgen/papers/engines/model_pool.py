"""Models that share GPUs by an instance policy, each GPU with memory for all or some of them, in whole steps of time.

The product's own scheduler runs them, one request a batch. A GPU that does not hold a model loads it first, and keeps
it as long as it has the memory. A request has started when a GPU is chosen for it, before a load.
"""

from collections.abc import Sequence
from statistics import fmean

import msgspec

from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, LoadModel
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.batcher.interface.instance_config import InstanceConfig
from sluice.batcher.interface.residency_config import Footprint, Loading, ResidencyConfig
from sluice.batcher.policies.no_batching import NoBatchingSettings
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS

STEP_NS = NS_PER_MS
NEVER_NS = 1 << 60
KIND = "gpu"


class PooledModel(msgspec.Struct, frozen=True):
    """A model: the steps that a load takes, and those that a request runs on a GPU which holds it."""

    name: str
    load: float
    run: float


class PoolStart(msgspec.Struct, frozen=True):
    """A request for `model` that came at step `came`, and started at `started` on a GPU, from 1 on."""

    model: str
    came: float
    started: float
    gpu: int
    is_cold: bool

    @property
    def wait(self) -> float:
        """The steps from the arrival to the start."""
        return self.started - self.came


class PoolRun(msgspec.Struct, frozen=True):
    """The requests in the order in which they started; the last one ended at step `total`."""

    starts: tuple[PoolStart, ...]
    total: float

    @property
    def cold_starts(self) -> int:
        """The number of requests whose GPU had to load the model."""
        return sum(each.is_cold for each in self.starts)

    @property
    def hits(self) -> int:
        """The number of requests whose GPU held the model."""
        return len(self.starts) - self.cold_starts

    def mean_wait(self, model: str = "") -> float:
        """The mean wait of the requests for a model, of all without one."""
        return fmean(each.wait for each in self.starts if model in ("", each.model))


def play_pool(
    policy: InstanceConfig,
    models: Sequence[PooledModel],
    gpus: int,
    arrivals: Sequence[tuple[float, str]],
    *,
    held: int | None = None,
) -> PoolRun:
    """Play requests, (step, model) in ascending order, to the last one; if the policy looks ahead, all come at once.

    A GPU holds at most `held` models (None: all).
    """
    steps = {model.name: (round(model.load * STEP_NS), LatencyTable.from_ms({1: model.run})) for model in models}
    spec = SchedulerSpec(
        tuple(
            ScheduledModel(
                name,
                1,
                NoBatchingSettings(),
                memory_bytes=1,
                footprints={KIND: Footprint(1, load_ns=load_ns, table=table)},
                instances=policy,
            )
            for name, (load_ns, table) in steps.items()
        ),
        tuple(PipelineConfig(name, (StageConfig(name, name),)) for name in steps),
        tuple(PartitionConfig(f"GPU{number + 1}", KIND, memory_bytes=held or len(steps)) for number in range(gpus)),
        Limits(queue_requests=len(arrivals) + 1, hand_off_ns=0),
        ResidencyConfig(Loading.DEMAND, min_resident_ns=0),
    )
    chosen_ns: dict[str, int] = {}
    started: list[tuple[int, int, int, bool]] = []

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, LoadModel):
                chosen_ns[decision.partition] = now_ns
            elif isinstance(decision, DispatchBatch):
                is_cold = decision.partition in chosen_ns
                at_ns = chosen_ns.pop(decision.partition, now_ns)
                gpu = int(decision.partition.removeprefix("GPU"))
                started.append((at_ns, decision.members[0].request, gpu, is_cold))

    gateway = VirtualGateway(
        spec,
        {each.name: {name: table for name, (_, table) in steps.items()} for each in spec.partitions},
        holding={},
        load_ns=lambda order: steps[order.model][0],
        observe=observe,
    )
    came_ns = [round(at * STEP_NS) for at, _ in arrivals]
    played = gateway.play(
        (0 if policy.lookahead else at_ns, RequestArrived(number, name, 1, NEVER_NS, not_before_ns=at_ns))
        for number, (at_ns, (_, name)) in enumerate(zip(came_ns, arrivals, strict=True))
    )
    return PoolRun(
        tuple(
            PoolStart(arrivals[request][1], came_ns[request] / STEP_NS, at_ns / STEP_NS, gpu, is_cold)
            for at_ns, request, gpu, is_cold in sorted(started)
        ),
        max(each.ended_ns for each in played.requests) / STEP_NS,
    )
