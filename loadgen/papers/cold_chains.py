"""Chains of models that no partition holds: how many loads a request waits for.

N. Daw, U. Bellur and P. Kulkarni, Xanadu: Mitigating Cascading Cold Starts in Serverless Function Chain Deployments
(Middleware 2020), prepares the functions of the most likely path just in time. It reports a tenth of OpenWhisk's and
an eighteenth of Knative's overhead; the wait grows 1.11 times over the length of the chain.
"""

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
from sluice.batcher.interface.residency_config import Footprint, Loading, Prewarm, ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentReport, PaperExperiment, gated
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

STAGES = (1, 2, 5, 10)
RUN_NS, LOAD_NS = NS_PER_S // 2, NS_PER_S
KIND = "gpu"
HALF_A_SECOND = LatencyTable.from_ms({1: 500.0})


class ColdChain(msgspec.Struct, frozen=True):
    """One request to a chain without loaded models.

    `overhead_ns` is its latency beyond the time that its stages run, and `locked_ns` for how long loaded models lay
    idle, in all. `loads` counts the loads.
    """

    overhead_ns: int
    locked_ns: int
    loads: int

    @property
    def cold_starts(self) -> float:
        """The number of loads that the request waited for."""
        return self.overhead_ns / LOAD_NS


def cold_chain(stages: int, prewarm: Prewarm) -> ColdChain:
    """Send one request to a chain of that many models, each of which needs a partition for itself."""
    names = [f"stage{number}" for number in range(stages)]
    footprint = Footprint(1, load_ns=LOAD_NS, table=HALF_A_SECOND)
    spec = SchedulerSpec(
        tuple(
            ScheduledModel(name, 1, DeadlineSettings(), memory_bytes=1, footprints={KIND: footprint}) for name in names
        ),
        (
            PipelineConfig(
                "chain",
                tuple(StageConfig(name, name, (index - 1,) if index else ()) for index, name in enumerate(names)),
            ),
        ),
        tuple(PartitionConfig(f"gpu{number}", KIND, memory_bytes=1) for number in range(stages)),
        residency=ResidencyConfig(Loading.DEMAND, prewarm=prewarm, min_resident_ns=10 * NS_PER_S),
    )
    ordered_ns: dict[str, int] = {}
    locked_ns: dict[str, int] = {}

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        for decision in decisions:
            if isinstance(decision, LoadModel):
                ordered_ns[decision.model] = now_ns
            elif isinstance(decision, DispatchBatch):
                locked_ns[decision.model] = now_ns - ordered_ns[decision.model] - LOAD_NS

    gateway = VirtualGateway(
        spec,
        {partition.name: dict.fromkeys(names, HALF_A_SECOND) for partition in spec.partitions},
        holding={},
        load_ns=lambda order: LOAD_NS,
        observe=observe,
    )
    played = gateway.play([(0, RequestArrived(1, "chain", 1, 100 * NS_PER_S))])
    (request,) = played.requests
    return ColdChain(
        request.ended_ns - request.came_ns - stages * RUN_NS, sum(locked_ns.values()), sum(played.loads.values())
    )


def run(effort: Effort) -> ExperimentReport:
    """All lengths with each way to prepare later stages; chance has no part."""
    chains = {(stages, prewarm): cold_chain(stages, prewarm) for stages in STAGES for prewarm in Prewarm}
    longest = STAGES[-1]
    off, jit, speculative = (chains[longest, each] for each in (Prewarm.OFF, Prewarm.JIT, Prewarm.SPECULATIVE))
    most = max(chains[stages, Prewarm.JIT].cold_starts for stages in STAGES)
    ratio = off.cold_starts / jit.cold_starts
    locked = jit.locked_ns / speculative.locked_ns
    most_loads = max(chain.loads / stages for (stages, _), chain in chains.items())
    findings = (
        gated(
            "loads that a request waits for, just in time, at most",
            f"{most:.3f}",
            published="1.11 times one load over the chain",
            gate="at most 1.11",
            is_met=most <= 1.11,
        ),
        gated(
            f"overhead without preparation, by that just in time, {longest} stages",
            f"{ratio:.2f}",
            published="10 (OpenWhisk), 18 (Knative)",
            gate="at least 9",
            is_met=ratio >= 9,
            why="the overhead without preparation is one load a stage",
        ),
        gated(
            "time for which loaded models lie idle, just in time, by that when all are loaded at once",
            f"{locked:.1%}",
            gate="at most 5 %",
            is_met=locked <= 0.05,
        ),
        gated("loads of a model, at most", f"{most_loads:g}", gate="one", is_met=most_loads == 1),
    )
    return ExperimentReport(findings, (_table(chains),))


def _table(chains: dict[tuple[int, Prewarm], ColdChain]) -> str:
    lines = ["| stages | prepared | loads waited for | idle after loading |", "|---|---|---|---|"]
    for (stages, prewarm), chain in chains.items():
        lines.append(f"| {stages} | {prewarm} | {chain.cold_starts:.2f} | {chain.locked_ns / NS_PER_S:.2f} s |")
    return "\n".join(lines) + "\n"


EXPERIMENT = PaperExperiment(
    "xanadu",
    "chains of cold models wait for one load, however long they are",
    "Daw, Bellur and Kulkarni, Xanadu, Middleware 2020",
    given="chains of functions that are prepared just in time; overheads beside OpenWhisk and Knative",
    assumed="a load takes 1 s, a stage runs for 0.5 s, and each model has a partition for itself",
    run=run,
)
