"""Stored objects: stages that read one run where it is in memory, of 10 objects of 2 MB on 4 nodes.

Cloudburst, on which A. Ramkumar's thesis builds (EECS-2022-88, chapter 3), keeps objects of its store in caches beside
its functions, and runs a function where the objects are that it reads. The benchmark of its authors (Cloudflow,
`locality`) has a first stage that says which object the second one reads. In Sluice the data that requests share are
the weights of models, so an object is a model of that size, and a node that does not hold it loads it from the store.
"""

import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

import msgspec

from sluice.batcher.interface.config import (
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch, LoadModel
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.batcher.interface.instance_config import InstanceConfig, InstanceRule, instance_config
from sluice.batcher.interface.residency_config import Footprint, Loading, ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.live_objects import LiveReads, read_objects
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, gated
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S
from sluice.mps.partitions.cpu import available_cores

OBJECTS, OBJECT_BYTES = 10, 2_000_000
NODES, HELD = 4, 3
"""Nodes, and the objects that each has memory for."""
BYTES_PER_S = 125_000_000
"""A store behind links of 1 Gbit/s: 16 ms an object."""
LOAD_NS = OBJECT_BYTES * NS_PER_S // BYTES_PER_S
READ_MS, MAX_BATCH = 5.0, 8
READ = LatencyTable.from_ms({rows: READ_MS * (0.4 + 0.6 * rows) for rows in (1, 2, 4, MAX_BATCH)})
PICK = LatencyTable.from_ms({1: 0.2, MAX_BATCH: 0.4})
LOAD = 0.6
"""The share of the nodes' time that the reads take, one by one."""
OBJECTIVE_MS = 100
REQUESTS, QUICK_REQUESTS = 1_000, 300
KIND, PICKER = "node", "pick"
LIVE_NODES, LIVE_HELD = 2, 6
LIVE_READS = {True: 30, False: 300}
"""Reads of a run by whether it is quick."""
RULES = (InstanceRule.LOCALITY, InstanceRule.HOME_HASH, InstanceRule.BALANCE, InstanceRule.ROUND_ROBIN)


class ObjectReads(msgspec.Struct, frozen=True):
    """The reads of a run: those where the object was in memory, those that waited for it, and the loads.

    `in_time` is the part of all requests, and `p99_ms` is of those that were answered.
    """

    hits: int
    misses: int
    loads: int
    in_time: float
    p99_ms: float

    @property
    def hit_rate(self) -> float:
        """The part of the reads whose object was in memory."""
        return self.hits / (self.hits + self.misses)


class _ReadCount:
    """Counts reads by whether the batch is the first one of its object since a load on its node."""

    def __init__(self) -> None:
        self.hits = self.misses = self.loads = 0
        self._fresh: set[tuple[str, str]] = set()

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, LoadModel):
                self.loads += 1
                self._fresh.add((decision.partition, decision.model))
            elif isinstance(decision, DispatchBatch) and decision.model != PICKER:
                place = decision.partition, decision.model
                if place in self._fresh:
                    self._fresh.remove(place)
                    self.misses += len(decision.members)
                else:
                    self.hits += len(decision.members)


def play(rule: InstanceRule, seed: int, requests: int) -> ObjectReads:
    """One run, from empty nodes on."""
    objects = [f"object-{number}" for number in range(OBJECTS)]
    nodes = [f"node-{number}" for number in range(NODES)]
    rules = instance_config(rule)
    spec = SchedulerSpec(
        (
            _model(PICKER, Footprint(0, load_ns=1, table=PICK), rules),
            *(_model(name, Footprint(OBJECT_BYTES, load_ns=LOAD_NS, table=READ), rules) for name in objects),
        ),
        tuple(
            PipelineConfig(
                name, (StageConfig(PICKER, PICKER), StageConfig("read", name, (0,))), slo_ns=OBJECTIVE_MS * NS_PER_MS
            )
            for name in objects
        ),
        tuple(PartitionConfig(name, KIND, memory_bytes=HELD * OBJECT_BYTES) for name in nodes),
        residency=ResidencyConfig(Loading.DEMAND),
    )
    count = _ReadCount()
    gateway = VirtualGateway(
        spec,
        {node: {PICKER: PICK, **dict.fromkeys(objects, READ)} for node in nodes},
        holding=dict.fromkeys(nodes, (PICKER,)),
        load_ns=lambda order: LOAD_NS,
        observe=count.observe,
    )
    played = gateway.play(_arrivals(seed, objects, requests))
    return ObjectReads(count.hits, count.misses, count.loads, played.in_time, played.latency_ms(99))


def _model(name: str, footprint: Footprint, rules: InstanceConfig | None) -> ScheduledModel:
    return ScheduledModel(
        name,
        MAX_BATCH,
        DeadlineSettings(),
        memory_bytes=footprint.rest_bytes,
        footprints={KIND: footprint},
        pinned=name == PICKER,
        instances=rules,
    )


def _arrivals(seed: int, objects: list[str], requests: int) -> Iterator[tuple[int, AnyEvent]]:
    """Poisson arrivals, each for any of the objects."""
    chance, at_ns = random.Random(seed), 0
    for request in range(requests):
        at_ns += int(chance.expovariate(LOAD * NODES / READ_MS) * NS_PER_MS)
        yield at_ns, RequestArrived(request, chance.choice(objects), 1, at_ns + OBJECTIVE_MS * NS_PER_MS)


def play_all(effort: Effort) -> dict[InstanceRule, list[ObjectReads]]:
    """Paired runs with each seed, by rule."""
    requests = QUICK_REQUESTS if effort.quick else REQUESTS
    seeds = range(1, (2 if effort.quick else effort.seeds) + 1)
    return {rule: [play(rule, seed, requests) for seed in seeds] for rule in RULES}


def read_live(effort: Effort) -> LiveReads:
    """The same objects on real worker servers, with memory for `LIVE_HELD` of them each."""
    memory_mb = LIVE_HELD * OBJECT_BYTES // 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        cores = available_cores()[:LIVE_NODES]
        return read_objects(Path(folder), OBJECTS, memory_mb, LIVE_READS[effort.quick], cores)


def live_finding(found: LiveReads) -> ExperimentFinding:
    """The gate on worker servers."""
    copies = sum(found.nodes_by_object.values()) / len(found.nodes_by_object)
    return gated(
        f"the same live, {LIVE_NODES} worker servers with memory for {LIVE_HELD} objects each, all loaded before",
        f"{found.hit_rate:.1%} of {found.reads}",
        gate="at least 80 %",
        is_met=found.hit_rate >= 0.8,
        why=f"{found.loads} objects were loaded again; one was read on {copies:.1f} nodes on average",
    )


def finding(found: Mapping[InstanceRule, list[ObjectReads]]) -> ExperimentFinding:
    """The gate on the runs of the product's own rule."""
    ours = found[InstanceRule.LOCALITY]
    least = min(each.hit_rate for each in ours)
    return gated(
        f"reads where the object is, {OBJECTS} objects of {OBJECT_BYTES / 1e6:g} MB on {NODES} nodes, with each seed",
        f"at least {least:.1%}",
        gate="at least 80 %",
        is_met=least >= 0.8,
        why=f"objects were loaded {max(each.loads for each in ours)} times in one run",
    )


def table(found: Mapping[InstanceRule, list[ObjectReads]]) -> str:
    """The means of all seeds, by rule."""
    lines = [
        f"Stages that read one of {OBJECTS} objects, {NODES} nodes with memory for {HELD} of them each:",
        "",
        "| instances | reads where the object is | loads | in time | p99 |",
        "|---|---|---|---|---|",
    ]
    for rule, runs in found.items():
        hits, loads = fmean(each.hit_rate for each in runs), fmean(each.loads for each in runs)
        in_time, p99_ms = fmean(each.in_time for each in runs), fmean(each.p99_ms for each in runs)
        lines.append(f"| {rule} | {hits:.1%} | {loads:.0f} | {in_time:.1%} | {p99_ms:.0f} ms |")
    return "\n".join(lines) + "\n"
