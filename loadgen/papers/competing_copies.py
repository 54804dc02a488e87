"""Stages whose times vary much: the same rows on several partitions, at once or after a percentile; and a cascade.

V. Sreekanti, H. Subbaraj, C. Wu, J. E. Gonzalez and J. M. Hellerstein, Optimizing Prediction Serving on Low-Latency
Serverless Dataflow (Cloudflow, arXiv 2007.05832), runs an operator of high variance several times and takes the first
answer. Its released benchmark draws the time of that operator from 10 ms times a gamma distribution of shape 3 and
scale 4. The figures here follow from that distribution; the paper does not print them. In the released cascade, rows of
which ResNet-101 is sure by less than 0.85 go on to Inception v3.
"""

import random
from collections.abc import Iterator

import msgspec

from sluice.batcher.interface.config import (
    CompeteConfig,
    ConfidenceSpec,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, Confidences, RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.loadgen.papers.experiment import Effort, ExperimentFinding, ExperimentReport, PaperExperiment, Plot, gated
from sluice.models.pipelines.pipeline import Confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S

SHAPE, SCALE, UNIT_MS = 3, 4, 10
BELOW = 0.85
P99_MS = {1: 334.8, 2: 212.5, 3: 165.8, 5: 124.9, 7: 104.2}
"""The 99th percentile by the number of copies, as it follows from the distribution."""
HEDGED = {50: (264, 50), 75: (285, 25), 90: (307, 10), 95: (320, 5)}
"""The 99th percentile and the further load in percent, where rows run again after a percentile of the times."""
WITHIN = 0.05
LOAD_WITHIN = 1.5
"""The points by which the further load may differ."""
PARTITIONS = 14
GAP_NS = NS_PER_S
"""The mean time between two requests: so long that partitions are idle, as nothing is to be learned here of queues."""
REQUESTS = 3_000
"""The requests of a seed; of these, the 99th percentile is within 5 % in 19 of 20 runs."""
KIND = "cpu1"
MEAN = LatencyTable.from_ms({1: SHAPE * SCALE * UNIT_MS})
SURE = ConfidenceSpec("probs", Confidence.MAX)


class DrawnService:
    """Batches take times from the gamma distribution; the first model is sure of a row by 0.5 to 1, each as often."""

    def __init__(self, seed: int) -> None:
        self._times = random.Random(f"times {seed}")
        self._sureness = random.Random(f"sureness {seed}")

    def batch_ns(self, batch: DispatchBatch) -> int:
        """The time that the partition takes for a batch."""
        return int(self._times.gammavariate(SHAPE, SCALE) * UNIT_MS * NS_PER_MS)

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        """The confidences of the first model of the cascade."""
        if batch.model != "first":
            return ()
        return (tuple(self._sureness.uniform(0.5, 1.0) for _ in range(batch.rows)),)

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        """There are no combiners."""
        return ()


class CompetingRun(msgspec.Struct, frozen=True):
    """The latencies of a run (ms, ascending), and how many batches ran for each request."""

    took_ms: list[float]
    batches: float

    def percentile_ms(self, percentile: float) -> float:
        """A percentile of the latencies."""
        return self.took_ms[int(len(self.took_ms) * percentile / 100)]


class _Seen:
    """The batches of a run, and what the first model of a cascade was sure of."""

    def __init__(self) -> None:
        self.batches = 0
        self.sureness: dict[int, float] = {}
        self.escalated: set[int] = set()
        self._first: dict[int, int] = {}

    def observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, BatchCompleted) and event.confidences:
            self.sureness.setdefault(self._first[event.batch], event.confidences[0][0])  # the first answer counts
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                self.batches += 1
                request = decision.members[0].request
                if decision.model == "first":
                    self._first[decision.batch] = request
                elif decision.model == "second":
                    self.escalated.add(request)


def competing(compete: CompeteConfig | None, requests: int, seeds: int) -> CompetingRun:
    """Runs of one stage with all seeds, taken together."""
    models = [ScheduledModel("operator", 1, DeadlineSettings())]
    stages = (StageConfig("operator", "operator", compete=compete),)
    runs = [_play(models, stages, requests, seed) for seed in range(1, seeds + 1)]
    took_ms = sorted(each for run_ms, _ in runs for each in run_ms)
    return CompetingRun(took_ms, sum(seen.batches for _, seen in runs) / len(took_ms))


class CascadeRun(msgspec.Struct, frozen=True):
    """A cascade: the shares of the rows that went on, `below` the threshold, `above` it and of all."""

    below: float
    above: float
    share: float
    mean_ms: float


def cascading(requests: int) -> CascadeRun:
    """One run of the cascade."""
    models = [
        ScheduledModel("first", 1, DeadlineSettings(), confidences=(SURE,)),
        ScheduledModel("second", 1, DeadlineSettings()),
    ]
    stages = (StageConfig("first", "first"), StageConfig("second", "second", when=WhenConfig(0, 0, BELOW)))
    took_ms, seen = _play(models, stages, requests, 1)
    unsure = {request for request, sureness in seen.sureness.items() if sureness < BELOW}
    sure = seen.sureness.keys() - unsure
    return CascadeRun(
        len(unsure & seen.escalated) / len(unsure),
        len(sure & seen.escalated) / len(sure),
        len(seen.escalated) / len(seen.sureness),
        sum(took_ms) / len(took_ms),
    )


def _play(
    models: list[ScheduledModel], stages: tuple[StageConfig, ...], requests: int, seed: int
) -> tuple[list[float], _Seen]:
    """The latencies of a pipeline's requests in ms, and what was seen."""
    partitions = tuple(PartitionConfig(f"cpu{number}", KIND) for number in range(PARTITIONS))
    spec = SchedulerSpec(tuple(models), (PipelineConfig("p", stages),), partitions)
    tables = {partition.name: {model.key: MEAN for model in models} for partition in partitions}
    seen = _Seen()
    gateway = VirtualGateway(spec, tables, service=DrawnService(seed), observe=seen.observe)
    played = gateway.play(_arrivals(requests, seed))
    return [(each.ended_ns - each.came_ns) / NS_PER_MS for each in played.requests], seen


def _arrivals(requests: int, seed: int) -> Iterator[tuple[int, RequestArrived]]:
    gaps = random.Random(f"gaps {seed}")
    now_ns = 0
    for number in range(requests):
        now_ns += int(gaps.expovariate(1.0) * GAP_NS)
        yield now_ns, RequestArrived(number, "p", 1, now_ns + 100 * NS_PER_S)


def run(effort: Effort) -> ExperimentReport:
    """Copies at once, copies after a percentile, and the cascade."""
    requests, seeds = REQUESTS, 1 if effort.quick else effort.seeds
    copies = {count: competing(CompeteConfig(count) if count > 1 else None, requests, seeds) for count in P99_MS}
    hedged = {
        percentile: competing(CompeteConfig(2, percentile=float(percentile)), requests, seeds) for percentile in HEDGED
    }
    findings = [_p99(f"99th percentile, {_copies(count)}", copies[count], P99_MS[count]) for count in P99_MS]
    for percentile, (p99_ms, more) in HEDGED.items():
        findings.append(_p99(f"99th percentile, again after p{percentile}", hedged[percentile], p99_ms))
        load = 100 * (hedged[percentile].batches - 1)
        findings.append(
            gated(
                f"further load, again after p{percentile}",
                f"{load:.1f} %",
                published=f"{more} %",
                gate=f"within {LOAD_WITHIN:g} points",
                is_met=abs(load - more) <= LOAD_WITHIN,
            )
        )
    cascade = cascading(requests)
    findings.append(
        gated(
            f"rows of the cascade that go on: below {BELOW} / others",
            f"{cascade.below:.0%} / {cascade.above:.0%}",
            published="all / none",
            gate="all / none",
            is_met=(cascade.below, cascade.above) == (1.0, 0.0),
        )
    )
    named = {_copies(count): run for count, run in copies.items()}
    named |= {f"again after p{percentile}": run for percentile, run in hedged.items()}
    return ExperimentReport(tuple(findings), (_table(named), _cascade_text(cascade)), (_plot(copies, hedged),))


def _p99(quantity: str, run: CompetingRun, published_ms: float) -> ExperimentFinding:
    ours_ms = run.percentile_ms(99)
    return gated(
        quantity,
        f"{ours_ms:.1f} ms",
        published=f"{published_ms:g} ms",
        gate=f"within {WITHIN:.0%}",
        is_met=abs(ours_ms / published_ms - 1) <= WITHIN,
    )


def _copies(count: int) -> str:
    return "1 copy" if count == 1 else f"{count} copies"


def _table(runs: dict[str, CompetingRun]) -> str:
    lines = ["| the same rows run | p50 | p90 | p99 | p99.9 | batches a request |", "|---|---|---|---|---|---|"]
    for name, run in runs.items():
        times = " | ".join(f"{run.percentile_ms(each):.1f} ms" for each in (50, 90, 99, 99.9))
        lines.append(f"| {name} | {times} | {run.batches:.3f} |")
    return "\n".join(lines) + "\n"


def _cascade_text(cascade: CascadeRun) -> str:
    both_ms = 2 * SHAPE * SCALE * UNIT_MS
    return (
        f"In the cascade, {cascade.share:.1%} of the rows go on, and a row takes {cascade.mean_ms:.0f} ms on average, "
        f"where both models one after the other take {both_ms} ms.\n"
    )


def _plot(copies: dict[int, CompetingRun], hedged: dict[int, CompetingRun]) -> Plot:
    lines = [("at once", [copies[count] for count in sorted(copies)])]
    lines.append(("after a percentile", [hedged[percentile] for percentile in sorted(hedged, reverse=True)]))
    points = [(name, tuple((run.batches, run.percentile_ms(99)) for run in runs)) for name, runs in lines]
    return Plot(
        "p99-by-load", "99th percentile by what runs for a request", "batches a request", "latency, ms", tuple(points)
    )


EXPERIMENT = PaperExperiment(
    "cloudflow",
    "the first of several answers cuts the tail of a stage whose times vary; a copy after a percentile costs little",
    "Sreekanti et al., Cloudflow, arXiv 2007.05832; hydro-project/cloudflow",
    given="times of 10 ms * Gamma(3, 4), copies of 1, 2, 3, 5 and 7, the threshold of the cascade, 0.85; the published "
    "percentiles are those of the distribution",
    assumed="14 partitions and a request a second, so that partitions are idle; the first model is sure of a row by "
    "0.5 to 1, each as often",
    run=run,
)
