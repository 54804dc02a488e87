"""Baselines of serving: requests go to the node that holds their model, and batches have fixed sizes.

Apache OpenWhisk's load balancer is in `home_nodes`. TensorFlow Serving pads batches to allowed sizes, lets models take
turns on one device, and refuses requests while its queue is full (`SharedBatchScheduler`).
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import fmean

import msgspec

from sluice.batcher.interface.config import (
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.events import AnyEvent, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.static import StaticSettings
from sluice.loadgen.papers import home_nodes
from sluice.loadgen.papers.engines.busy_clients import PATIENCE_NS, BatchRecord
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

STATIC = StaticSettings(
    max_batch_size=32,
    batch_timeout_micros=2000,
    max_enqueued_batches=4,
    num_batch_threads=1,
    allowed_batch_sizes=(4, 8, 16, 32),
)
TABLE = LatencyTable.from_ms({1: 1.2, 4: 1.4, 8: 1.8, 16: 2.6, 32: 4.2})
"""The time of a batch on the partition of the two models."""
PAIR = ("a:1", "b:1")
FULL_RATE = 32 / 0.0042
"""Rows a second of one model alone, in full batches."""


class SharedPartition(msgspec.Struct, frozen=True):
    """Two models on one partition: batches by size; rows, time and refusals by model; the part of added rows."""

    sizes: Counter[int]
    served: Mapping[str, int]
    time_ns: Mapping[str, int]
    refused: Mapping[str, int]
    added: float

    @property
    def ratio(self) -> float:
        """Rows of the first model by those of the second."""
        return self.served[PAIR[0]] / self.served[PAIR[1]]


def arrivals(seed: int, rates: Mapping[str, float], until_ns: int) -> Iterator[tuple[int, AnyEvent]]:
    """Requests of one to three rows at Poisson times, `rates` in rows a second by pipeline."""
    chance = random.Random(seed)
    total, at_ns, request = sum(rates.values()) / 2, 0, 0
    while (at_ns := at_ns + int(chance.expovariate(total) * NS_PER_S)) < until_ns:
        (pipeline,) = chance.choices(list(rates), list(rates.values()))
        yield at_ns, RequestArrived(request, pipeline, chance.randint(1, 3), at_ns + PATIENCE_NS)
        request += 1


def share_partition(seed: int, loads: Mapping[str, float], until_ns: int) -> SharedPartition:
    """Play two models on one partition, each with a load that is given as a multiple of `FULL_RATE`."""
    spec = SchedulerSpec(
        tuple(ScheduledModel(key, 32, STATIC) for key in PAIR),
        tuple(PipelineConfig(key, (StageConfig(key[0], key),)) for key in PAIR),
        (PartitionConfig("p0", "cpu1"),),
    )
    record = BatchRecord()
    gateway = VirtualGateway(spec, {"p0": dict.fromkeys(PAIR, TABLE)}, observe=record.observe)
    rates = {key: load * FULL_RATE for key, load in loads.items()}
    ended = gateway.play(arrivals(seed, rates, until_ns)).requests
    sizes: Counter[int] = Counter()
    served: Counter[str] = Counter()
    time_ns: Counter[str] = Counter()
    for batch in record.batches:
        sizes[batch.sent.run_rows] += 1
        served[batch.sent.model] += batch.rows
        time_ns[batch.sent.model] += TABLE.latency_ns(batch.sent.run_rows)
    refused = Counter(each.pipeline for each in ended if each.outcome is Outcome.REJECTED_QUEUE_FULL)
    run_rows = sum(size * count for size, count in sizes.items())
    return SharedPartition(sizes, served, time_ns, refused, 1 - served.total() / run_rows)


def _static_findings(seeds: range, until_ns: int) -> tuple[list[ExperimentFinding], str]:
    cases = {
        "both 0.3": dict.fromkeys(PAIR, 0.3),
        "both 2.0": dict.fromkeys(PAIR, 2.0),
        "1.0 and 4.0": dict(zip(PAIR, (1.0, 4.0), strict=True)),
    }
    runs = {name: [share_partition(seed, loads, until_ns) for seed in seeds] for name, loads in cases.items()}
    sizes = sorted({size for each in runs.values() for run in each for size in run.sizes})
    crowded = [run for name in list(cases)[1:] for run in runs[name]]
    ratios = [run.ratio for run in crowded]
    findings = [
        gated(
            "sizes that ran",
            ", ".join(map(str, sizes)),
            published=", ".join(map(str, STATIC.allowed_batch_sizes)),
            gate="allowed ones only",
            is_met=set(sizes) <= set(STATIC.allowed_batch_sizes),
        ),
        gated(
            "rows of one model by those of the other on a partition that both overload",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            gate="0.9 to 1.1 with each seed",
            is_met=min(ratios) >= 0.9 and max(ratios) <= 1.1,
        ),
        gated(
            "requests refused (429) while the queue is full",
            f"{min(sum(run.refused.values()) for run in crowded)} at least in a run that overloads, "
            f"{max(sum(run.refused.values()) for run in runs['both 0.3'])} at most in one that does not",
            gate="some, and none",
            is_met=all(all(run.refused[key] for key in PAIR) for run in crowded)
            and not any(run.refused for run in runs["both 0.3"]),
        ),
    ]
    lines = [
        "| load of each model alone | rows of a by b | time of a by b | rows that padding added |",
        "|---|---|---|---|",
    ]
    for name, each in runs.items():
        by_rows, by_time = (
            fmean(run.ratio for run in each),
            fmean(run.time_ns["a:1"] / run.time_ns["b:1"] for run in each),
        )
        lines.append(f"| {name} | {by_rows:.2f} | {by_time:.2f} | {fmean(run.added for run in each):.1%} |")
    return findings, "\n".join(lines) + "\n"


def run(effort: Effort) -> ExperimentReport:
    """Home nodes, and a partition of two models."""
    seeds = range(1, 3 if effort.quick else effort.seeds + 1)
    static, table = _static_findings(seeds, (1 if effort.quick else 5) * NS_PER_S // 2)
    return ExperimentReport((*home_nodes.findings(effort), *static), (table,))


EXPERIMENT = PaperExperiment(
    "baselines",
    "a model is in memory at its home node; fixed batches run in allowed sizes, in turn, and a full queue refuses",
    "Apache OpenWhisk, sharding container pool balancer; TensorFlow Serving, shared batch scheduler",
    given="the hash and the steps; the names and the meaning of the batching parameters",
    assumed=(
        "all models are asked for equally often, a node is busy with them for a fifth of its time, and a load takes "
        "half as long as a run; two models with batches of 1.2 to 4.2 ms, "
        "requests of one to three rows, and the parameters of the table's runs: at most 32 rows, 2 ms, "
        "4 batches that wait, one thread a model, sizes 4, 8, 16 and 32"
    ),
    run=run,
)
