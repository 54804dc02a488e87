"""Chains and trees of models that no partition holds: how many loads a request waits for, and what is loaded in vain.

N. Daw, U. Bellur and P. Kulkarni, Xanadu: Mitigating Cascading Cold Starts in Serverless Function Chain Deployments
(Middleware 2020), prepares the functions of the most likely path just in time. It reports a tenth of OpenWhisk's and
an eighteenth of Knative's overhead; the wait grows 1.11 times over the length of the chain. Where a request leaves the
path, Xanadu prepares nothing more for it. Sluice finds the most likely path from there, unless it is to stop as well.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

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
from sluice.batcher.interface.residency_config import Footprint, Loading, OnMiss, Prewarm, ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.cold_tree import HALF_A_SECOND, KIND, LOAD_NS, PATH, RUN_NS, ColdTree, tree_stages
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, gated
from sluice.models.units import NS_PER_S

STAGES = (1, 2, 5, 10)
LIKELIER = (0.9, 0.7, 0.5)
"""The probability of the likelier side at a division."""
USUAL = 0.7
SPREAD = 0.2
"""The part of its usual time that a load or a run takes more or less, at most, where times vary."""
PREPARED = {
    "off": ResidencyConfig(Loading.DEMAND, prewarm=Prewarm.OFF),
    "jit, replan": ResidencyConfig(Loading.DEMAND, on_miss=OnMiss.REPLAN),
    "jit, stop": ResidencyConfig(Loading.DEMAND, on_miss=OnMiss.STOP),
    "speculative": ResidencyConfig(Loading.DEMAND, prewarm=Prewarm.SPECULATIVE),
}


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


class TreeCase(NamedTuple):
    """One way to prepare the models of a tree, the probability of the likelier side, and how much times vary."""

    prepared: str
    likelier: float = USUAL
    partitions: int = len(tree_stages())
    spread: float = 0.0


class TreeFigures(msgspec.Struct, frozen=True):
    """Means over the requests of a case, the 95th percentile of the loads that they wait for, and loads of a model."""

    missed: float
    cold_starts: float
    cold_starts_p95: float
    locked_s: float
    unused: float
    most_loads: int


FEWEST = TreeCase("jit, replan", partitions=PATH)
CASES = (
    *(TreeCase(prepared) for prepared in PREPARED),
    *(TreeCase(prepared, each) for each in LIKELIER if each != USUAL for prepared in ("jit, replan", "jit, stop")),
    FEWEST,
    *(TreeCase(prepared, spread=SPREAD) for prepared in PREPARED if prepared != "off"),
)


def tree_figures(case: TreeCase, seeds: int, requests: int) -> TreeFigures:
    """Play a case with that many seeds."""
    config = msgspec.structs.replace(PREPARED[case.prepared], min_resident_ns=10 * NS_PER_S)
    played = [
        request
        for seed in range(seeds)
        for request in ColdTree(config, case.likelier, case.partitions, seed, case.spread).play(requests)
    ]
    waited = sorted(request.waited_ns / LOAD_NS for request in played)
    return TreeFigures(
        sum(not request.throughout for request in played) / len(played),
        sum(waited) / len(played),
        waited[min(len(played) * 95 // 100, len(played) - 1)],
        sum(request.locked_ns for request in played) / NS_PER_S / len(played),
        sum(request.unused for request in played) / len(played),
        max(request.most_loads for request in played),
    )


def run(effort: Effort) -> ExperimentReport:
    """All lengths of chains, and all cases of trees; in chains, chance has no part."""
    seeds, requests = (1, 30) if effort.quick else (effort.seeds, 60)
    chains = {(stages, prewarm): cold_chain(stages, prewarm) for stages in STAGES for prewarm in Prewarm}
    trees = {case: tree_figures(case, seeds, requests) for case in CASES}
    findings = (*_chain_findings(chains), *_tree_findings(trees), _loads_finding(chains, trees))
    return ExperimentReport(findings, (_table(chains), _tree_table(trees)))


def _chain_findings(chains: Mapping[tuple[int, Prewarm], ColdChain]) -> Iterator[ExperimentFinding]:
    longest = STAGES[-1]
    off, jit, speculative = (chains[longest, each] for each in (Prewarm.OFF, Prewarm.JIT, Prewarm.SPECULATIVE))
    most = max(chains[stages, Prewarm.JIT].cold_starts for stages in STAGES)
    ratio = off.cold_starts / jit.cold_starts
    yield gated(
        "loads that a request waits for, just in time, at most",
        f"{most:.3f}",
        published="1.11 times one load over the chain",
        gate="at most 1.11",
        is_met=most <= 1.11,
    )
    yield gated(
        f"overhead without preparation, by that just in time, {longest} stages",
        f"{ratio:.2f}",
        published="10 (OpenWhisk), 18 (Knative)",
        gate="at least 9",
        is_met=ratio >= 9,
        why="the overhead without preparation is one load a stage",
    )
    yield _locked("chains", jit.locked_ns, speculative.locked_ns)


def _tree_findings(trees: Mapping[TreeCase, TreeFigures]) -> Iterator[ExperimentFinding]:
    for likelier in LIKELIER:
        replan, stop = trees[TreeCase("jit, replan", likelier)], trees[TreeCase("jit, stop", likelier)]
        yield gated(
            f"p95 of loads waited for in a tree, replanning / stopping; {replan.missed:.0%} leave the likelier path",
            f"{replan.cold_starts_p95:.2f} / {stop.cold_starts_p95:.2f}",
            gate="less than stopping",
            is_met=replan.cold_starts_p95 < stop.cold_starts_p95,
        )
    for what, spread in (("trees", 0.0), (f"trees where times vary by {SPREAD:.0%}", SPREAD)):
        jit, speculative = (trees[TreeCase(each, spread=spread)] for each in ("jit, replan", "speculative"))
        yield _locked(what, jit.locked_s, speculative.locked_s)
    ratio = trees[FEWEST].cold_starts / trees[TreeCase(FEWEST.prepared)].cold_starts
    yield gated(
        f"loads waited for with {PATH} partitions, one a stage of a path, by those with one a model",
        f"{ratio:.2f}",
        gate="at most 1.05",
        is_met=ratio <= 1.05,
        why="models that were loaded for nothing are in the way",
    )


def _locked(what: str, jit: float, speculative: float) -> ExperimentFinding:
    share = jit / speculative
    what = f"time for which loaded models lie idle and make no room, just in time / all loaded at once; {what}"
    return gated(what, f"{share:.1%}", gate="at most 5 %", is_met=share <= 0.05)


def _loads_finding(
    chains: Mapping[tuple[int, Prewarm], ColdChain], trees: Mapping[TreeCase, TreeFigures]
) -> ExperimentFinding:
    in_chains = max(chain.loads / stages for (stages, _), chain in chains.items())
    most = max(in_chains, *(figures.most_loads for figures in trees.values()))
    return gated("loads of a model for a request, at most", f"{most:g}", gate="one", is_met=most == 1)


def _table(chains: Mapping[tuple[int, Prewarm], ColdChain]) -> str:
    lines = ["| stages | prepared | loads waited for | idle after loading |", "|---|---|---|---|"]
    for (stages, prewarm), chain in chains.items():
        lines.append(f"| {stages} | {prewarm} | {chain.cold_starts:.2f} | {chain.locked_ns / NS_PER_S:.2f} s |")
    return "\n".join(lines) + "\n"


def _tree_table(trees: Mapping[TreeCase, TreeFigures]) -> str:
    lines = [
        "| prepared | likelier side | partitions | times vary by | leave its path | loads waited for | p95 "
        "| idle, makes no room | loaded for nothing |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case, figures in trees.items():
        lines.append(
            f"| {case.prepared} | {case.likelier:g} | {case.partitions} | {case.spread:.0%} | {figures.missed:.0%} "
            f"| {figures.cold_starts:.2f} | {figures.cold_starts_p95:.2f} | {figures.locked_s:.2f} s "
            f"| {figures.unused:.2f} |"
        )
    return "\n".join(lines) + "\n"


EXPERIMENT = PaperExperiment(
    "xanadu",
    "chains of cold models wait for one load, however long they are, and one more for each branch not foreseen",
    "Daw, Bellur and Kulkarni, Xanadu, Middleware 2020",
    given="chains of functions that are prepared just in time; overheads beside OpenWhisk and Knative",
    assumed="a load takes 1 s, a stage runs for 0.5 s, and each model takes a whole partition; a tree divides after "
    "the first and the fourth of seven stages, and between two requests to it other models take all partitions",
    run=run,
)
