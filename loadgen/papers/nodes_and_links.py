"""The four applications of ESG on its 16 nodes of seven GPU slices, with links between the gateway and the nodes.

ESG (HPDC 2024) runs chains of DNNs on 16 nodes whose GPUs are cut into seven slices, sends the first stage to the home
node of its function and later ones to the node of the stage before, and finds that the transfers of early stages delay
the others. Neither its code nor its profiles are public. Assumed here are the times and inputs of its functions as
recalled from the paper, that a batch of b rows takes 0.4 + 0.6 b times as long as one row, the sizes of outputs (those
of the next function's inputs), links of 10 and of 1 Gbit/s with 0.1 ms there and back, and arrivals with the gaps of
its heavy load for the four applications in turn. So only the rows of this table can be compared.
"""

import random
from collections.abc import Iterator, Mapping
from statistics import fmean

import msgspec

from sluice.batcher.drivers.simulated_nodes import SimulatedNode
from sluice.batcher.interface.config import (
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S, NS_PER_US

NODES, SLICES = 16, 7
KIND = "1g"
SECONDS, QUICK_SECONDS = 30, 3
SEED = 16
WITHIN = 1.3
"""The objective of an application, as a multiple of the time that its functions take by themselves."""
GAPS_MS = (10.0, 16.8)
"""The time between two requests under heavy load."""
SIZES = (1, 2, 4, 8)
LATENCY_NS = 50 * NS_PER_US
GBIT = 125_000_000
AT_ONCE = 1 << 60
"""Bytes a second of a link that takes no time."""


class Function(msgspec.Struct, frozen=True):
    """A DNN: the time of a row on one slice, and the sizes of its input and output."""

    row_ms: float
    input_bytes: int
    output_bytes: int


FUNCTIONS = {
    "deblur": Function(319, 1_100_000, 2_700_000),
    "super-resolution": Function(86, 2_700_000, 2_500_000),
    "segmentation": Function(293, 2_500_000, 147_000),
    "classification": Function(147, 147_000, 4_000),
    "background-removal": Function(1047, 2_500_000, 2_500_000),
    "depth": Function(828, 648_000, 648_000),
}
APPLICATIONS = {
    "image-classification": ("super-resolution", "segmentation", "classification"),
    "depth-recognition": ("deblur", "super-resolution", "depth"),
    "background-elimination": ("super-resolution", "deblur", "background-removal"),
    "expanded-classification": (
        "deblur",
        "super-resolution",
        "background-removal",
        "segmentation",
        "classification",
    ),
}


class Setting(msgspec.Struct, frozen=True):
    """One run: the links (0: no time), whether the scheduler predicts transfers, and whether nodes keep outputs.

    With `loses_a_node`, the first node is gone from a third of the run to two thirds.
    """

    name: str
    gbit_per_s: int
    predicts: bool = True
    keeps_outputs: bool = False
    loses_a_node: bool = False


SETTINGS = (
    Setting("take no time", 0),
    Setting("10 Gbit/s, transfers unknown", 10, predicts=False),
    Setting("10 Gbit/s, transfers predicted", 10),
    Setting("10 Gbit/s, predicted, outputs kept", 10, keeps_outputs=True),
    Setting("the same, one node lost for a third of the time", 10, keeps_outputs=True, loses_a_node=True),
    Setting("1 Gbit/s, transfers unknown", 1, predicts=False),
    Setting("1 Gbit/s, transfers predicted", 1),
    Setting("1 Gbit/s, predicted, outputs kept", 1, keeps_outputs=True),
)


class ClusterResult(msgspec.Struct, frozen=True):
    """The outcomes and latencies of a run.

    `in_time` and `late` are parts of all requests, and `failed` is how many failed; the rest was refused. `mean_ms` and
    `p99_ms` are of those that were answered. `hits` is the part of later stages that ran on the node of the stage
    before; `sent_mb` is what a request sent to nodes on average.
    """

    in_time: float
    late: float
    failed: int
    mean_ms: float
    p99_ms: float
    hits: float
    sent_mb: float


def play(setting: Setting, seconds: int = SECONDS) -> ClusterResult:
    """One run in virtual time; the same every time."""
    tables = {name: _table(function) for name, function in FUNCTIONS.items()}
    names = [[f"node{node}-{part}" for part in range(SLICES)] for node in range(NODES)]
    spec = SchedulerSpec(
        tuple(
            ScheduledModel(
                name,
                SIZES[-1],
                DeadlineSettings(),
                input_bytes=function.input_bytes,
                output_bytes=function.output_bytes,
            )
            for name, function in FUNCTIONS.items()
        ),
        tuple(PipelineConfig(name, _stages(chain), slo_ns=_objective_ns(name)) for name, chain in APPLICATIONS.items()),
        tuple(PartitionConfig(name, KIND) for node in names for name in node),
    )
    nodes = [
        SimulatedNode(
            f"node{number}",
            tuple(parts),
            setting.gbit_per_s * GBIT or AT_ONCE,
            LATENCY_NS if setting.gbit_per_s else 0,
            setting.keeps_outputs,
        )
        for number, parts in enumerate(names)
    ]
    gateway = VirtualGateway(
        spec, {each.name: tables for each in spec.partitions}, nodes=nodes, measures=setting.predicts
    )
    simulator = gateway.simulator
    if setting.loses_a_node:
        simulator.lose_node(seconds * NS_PER_S // 3, "node0", 2 * seconds * NS_PER_S // 3)
    played = gateway.play(_arrivals(seconds))
    later = simulator.nodes.near + simulator.nodes.far
    return ClusterResult(
        played.in_time,
        played.late,
        played.failed,
        fmean(each.ended_ns - each.came_ns for each in played.requests if each.outcome.answered) / NS_PER_MS,
        played.latency_ms(99),
        simulator.nodes.near / later if later else 0.0,
        simulator.nodes.sent_bytes / 1e6 / len(played.requests),
    )


def _table(function: Function) -> LatencyTable:
    return LatencyTable.from_ms({size: function.row_ms * (0.4 + 0.6 * size) for size in SIZES})


def _stages(chain: tuple[str, ...]) -> tuple[StageConfig, ...]:
    return tuple(
        StageConfig(
            name,
            name,
            (index - 1,) if index else (),
            source_bytes=FUNCTIONS[name].input_bytes if index else 0,
        )
        for index, name in enumerate(chain)
    )


def _objective_ns(application: str) -> int:
    return int(WITHIN * sum(FUNCTIONS[name].row_ms for name in APPLICATIONS[application]) * NS_PER_MS)


def _arrivals(seconds: int) -> Iterator[tuple[int, RequestArrived]]:
    source = random.Random(SEED)
    now_ns, applications = NS_PER_S // 10, list(APPLICATIONS)
    for request in range(1 << 30):
        now_ns += int(source.uniform(*GAPS_MS) * NS_PER_MS)
        if now_ns > seconds * NS_PER_S:
            return
        name = applications[request % len(applications)]
        yield now_ns, RequestArrived(request, name, 1, now_ns + _objective_ns(name))


def run(effort: Effort) -> ExperimentReport:
    """Every setting on the same arrivals."""
    results = {setting.name: play(setting, QUICK_SECONDS if effort.quick else SECONDS) for setting in SETTINGS}
    findings = []
    for gbit in (10, 1):
        unknown, predicted, kept = (
            results[f"{gbit} Gbit/s, {case}"]
            for case in ("transfers unknown", "transfers predicted", "predicted, outputs kept")
        )
        findings += [
            gated(
                f"in time, {gbit} Gbit/s, with transfers predicted",
                f"{predicted.in_time:.1%}",
                gate=f"at least as many as with transfers unknown ({unknown.in_time:.1%})",
                is_met=predicted.in_time >= unknown.in_time,
            ),
            ExperimentFinding(
                f"sent a request, {gbit} Gbit/s, where nodes keep outputs",
                f"{kept.sent_mb:.2f} MB of {predicted.sent_mb:.2f} MB",
            ),
        ]
    lost = results[SETTINGS[4].name]
    findings.append(gated("requests that fail with a node", str(lost.failed), gate="none", is_met=not lost.failed))
    return ExperimentReport(tuple(findings), (_results_table(results),))


def _results_table(results: Mapping[str, ClusterResult]) -> str:
    lines = [
        "| links | in time | late | failed | mean ms | p99 ms | same node | MB sent a request |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        lines.append(
            f"| {name} | {result.in_time:.1%} | {result.late:.1%} | {result.failed} | "
            f"{result.mean_ms:.0f} | {result.p99_ms:.0f} | {result.hits:.1%} | {result.sent_mb:.2f} |"
        )
    return "\n".join(lines) + "\n"


EXPERIMENT = PaperExperiment(
    "nodes",
    "chains of DNNs on 16 nodes of 7 slices, by the links between them",
    "ESG, HPDC 2024",
    given="nodes and slices, the four applications, home nodes, and the gaps of the heavy load",
    assumed="times of functions, sizes of tensors, batches, and links of 10 and of 1 Gbit/s",
    run=run,
)
