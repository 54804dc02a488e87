"""Requests to a DAG of two paths whose profiles are wrong and whose batches fail: when to commit to a configuration.

F. Romero, M. Zhao, N. J. Yadwadkar and C. Kozyrakis, Llama: A Heterogeneous & Serverless Framework for Auto-Tuning
Video Analytics Pipelines (SoCC 2021): a stage may take its share of the time left on every path, and its configuration
is chosen again when it starts, by profiles that are corrected. Its figures are of whole videos in a cloud.

The baseline here commits when a request comes: each stage gets the cheapest kind of partition and batch size within its
share of the objective, by the profiles as they were measured, and keeps them.
"""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean

from sluice.batcher.interface.config import (
    Limits,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, DispatchBatch
from sluice.batcher.interface.events import AnyEvent, BatchRevoked, RequestArrived
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.early_commitment import EarlyCommitment, PricedBackend
from sluice.loadgen.papers.engines.two_paths import (
    CASES,
    COUNTS,
    EXACT,
    MIXED,
    PRICES,
    ROW_MS,
    SHORT,
    SIZES,
    STEPS,
    TARGET_MS,
    Errors,
    Played,
    arrivals_ns,
    errors,
    played,
    tables,
)
from sluice.loadgen.papers.engines.virtual_gateway import TabledService, VirtualGateway
from sluice.loadgen.papers.experiment import (
    Effort,
    ExperimentFinding,
    ExperimentReport,
    GateVerdict,
    PaperExperiment,
    gated,
)
from sluice.models.units import NS_PER_MS, NS_PER_S

SECONDS = 30
FAILURES = 0.03
STRAGGLING, STRAGGLERS = 0.03, 8
"""The part of the batches that straggle, and how many times as long these take."""
FACTOR, NEVER = 2.0, 1e6
"""The medians after which a straggling batch runs elsewhere as well."""
QUICK_RUNS = ((SHORT, 0.0), (SHORT, FAILURES), (MIXED, 0.0))


def play_late(
    came_ns: Sequence[int],
    wrong: Errors,
    failures: float,
    seed: int,
    *,
    straggling: float = 0.0,
    factor: float = 0.0,
) -> Played:
    """The product's scheduler."""
    chance, strays = random.Random(f"failures {seed}"), random.Random(f"stragglers {seed}")
    kinds = {f"{kind}{number}": kind for kind, count in COUNTS.items() for number in range(count)}
    believed = {kind: tables(kind) for kind in PRICES}
    spec = SchedulerSpec(
        tuple(ScheduledModel(model, SIZES[-1], DeadlineSettings()) for model in ROW_MS),
        (
            PipelineConfig(
                "video",
                tuple(StageConfig(str(index), step.model, step.sources) for index, step in enumerate(STEPS)),
                slo_ns=int(TARGET_MS * NS_PER_MS),
            ),
        ),
        tuple(PartitionConfig(name, kind, PRICES[kind]) for name, kind in kinds.items()),
        Limits(straggler_factor=factor),
    )
    ran: dict[int, tuple[tuple[str, str, int], float]] = {}

    class Service(TabledService):
        def batch_ns(self, batch: DispatchBatch) -> int:
            kind = kinds[batch.partition]
            took_ns = int(super().batch_ns(batch) * wrong[kind, batch.model])
            if straggling and strays.random() < straggling:
                took_ns *= STRAGGLERS
            ran[batch.batch] = (kind, batch.model, batch.rows), PRICES[kind] * took_ns / NS_PER_S
            return took_ns

    def observe(now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, BatchRevoked):
            del ran[event.batch]

    named = {name: believed[kind] for name, kind in kinds.items()}
    gateway = VirtualGateway(
        spec, named, observe=observe, service=Service(named), fails=lambda batch: chance.random() < failures
    )
    traffic = gateway.play(
        (at_ns, RequestArrived(number, "video", 1, at_ns + int(TARGET_MS * NS_PER_MS)))
        for number, at_ns in enumerate(came_ns)
    )
    batches = Counter(batch for batch, _ in ran.values())
    return played(traffic.in_time, sum(cost for _, cost in ran.values()), batches, wrong, len(came_ns))


def play_early(came_ns: Sequence[int], wrong: Errors, failures: float, seed: int) -> Played:
    """The baseline."""
    chance = random.Random(f"failures {seed}")
    backends = [PricedBackend(COUNTS[kind], price, tables(kind)) for kind, price in PRICES.items()]
    kinds = list(PRICES)
    batches = Counter[tuple[str, str, int]]()

    def batch_ns(backend: int, model: str, rows: int) -> int:
        batches[kinds[backend], model, rows] += 1
        return int(backends[backend].tables[model].latency_ns(rows) * wrong[kinds[backend], model])

    early = EarlyCommitment(STEPS, backends, batch_ns, lambda: chance.random() < failures)
    ended_ns = early.play(came_ns, int(TARGET_MS * NS_PER_MS))
    in_time = sum(end - came <= TARGET_MS * NS_PER_MS for came, end in zip(came_ns, ended_ns, strict=True))
    return played(in_time / len(came_ns), early.cost, batches, wrong, len(came_ns))


def run(effort: Effort) -> ExperimentReport:
    """Both schedulers on the same requests, for each case, with and without failures; ours with stragglers, too."""
    seeds = 2 if effort.quick else effort.seeds
    late: dict[tuple[str, float], list[Played]] = {}
    early: dict[tuple[str, float], list[Played]] = {}
    stray: dict[tuple[str, float], list[Played]] = {}
    for seed in range(1, seeds + 1):
        came_ns = arrivals_ns(seed, SECONDS)
        for case, failures in QUICK_RUNS if effort.quick else product(CASES, (0.0, FAILURES)):
            wrong = errors(case, seed)
            late.setdefault((case, failures), []).append(play_late(came_ns, wrong, failures, seed))
            early.setdefault((case, failures), []).append(play_early(came_ns, wrong, failures, seed))
        for case, factor in product((EXACT,) if effort.quick else (EXACT, SHORT), (FACTOR, NEVER)):
            strayed = play_late(came_ns, errors(case, seed), 0.0, seed, straggling=STRAGGLING, factor=factor)
            stray.setdefault((case, factor), []).append(strayed)
    ours, failing, baseline = _mean(late[SHORT, 0.0]), _mean(late[SHORT, FAILURES]), _mean(early[SHORT, 0.0])
    mixed, mixed_early = _mean(late[MIXED, 0.0]), _mean(early[MIXED, 0.0])
    lost = 100 * (ours.in_time - failing.in_time)
    findings = (
        gated(
            "in time, late commitment with corrected profiles",
            f"{ours.in_time:.2%}",
            gate="at least 99 %",
            is_met=ours.in_time >= 0.99,
        ),
        gated(
            "in time, early commitment without correction",
            f"{baseline.in_time:.1%}",
            published="misses its target without feedback",
            gate="below 90 %",
            is_met=baseline.in_time < 0.9,
        ),
        gated(
            "in time where some profiles are too long and some too short, late and early commitment",
            f"{mixed.in_time:.2%} and {mixed_early.in_time:.1%}",
            gate="at least 99 %, and more than early commitment",
            is_met=mixed.in_time >= 0.99 and mixed.in_time > mixed_early.in_time,
        ),
        gated(
            f"points that {FAILURES:.0%} of failing batches cost, late commitment",
            f"{lost:.2f}",
            published="meets its target with 3 % of failures",
            gate="at most 1",
            is_met=lost <= 1,
        ),
        *[_second_runs(case, stray) for case in (EXACT, SHORT) if (case, FACTOR) in stray],
        _costs(ours, baseline),
    )
    return ExperimentReport(findings, (_table(late, early),))


def _second_runs(case: str, stray: Mapping[tuple[str, float], Sequence[Played]]) -> ExperimentFinding:
    """The finding on second runs of stragglers; there is no gate where partitions have no time for them."""
    copied, alone = _mean(stray[case, FACTOR]), _mean(stray[case, NEVER])
    quantity = (
        f"in time where {STRAGGLING:.0%} of the batches take {STRAGGLERS} times as long ({case}), "
        f"with and without a second run elsewhere after {FACTOR:g} medians"
    )
    ours = f"{copied.in_time:.2%} and {alone.in_time:.2%}, at costs of {copied.cost:.0f} and {alone.cost:.0f}"
    if case == SHORT:
        return ExperimentFinding(quantity, ours)
    is_met = copied.in_time > alone.in_time
    return gated(quantity, ours, published="repeats straggling invocations", gate="more with", is_met=is_met)


def _costs(ours: Played, baseline: Played) -> ExperimentFinding:
    """The costs of both, and the parts of the difference."""
    small, dear = (ours.cost - ours.full) - (baseline.cost - baseline.full), ours.full - ours.cheapest
    dear -= baseline.full - baseline.cheapest
    is_dearer = ours.cost >= baseline.cost
    return ExperimentFinding(
        "cost of 1000 requests, late commitment beside early commitment",
        f"{ours.cost:.0f} beside {baseline.cost:.0f}",
        published="less",
        verdict=GateVerdict.DIFFERS if is_dearer else GateVerdict.SHOWN,
        why=f"of the difference, {small:.0f} come of smaller batches ({ours.rows:.1f} rows beside {baseline.rows:.1f}) "
        f"and {dear:.0f} of dearer partitions: the objective `latency` starts what waits on what is idle, while early "
        "commitment waits for rows on the cheapest partitions"
        if is_dearer
        else "",
    )


def _mean(runs: Sequence[Played]) -> Played:
    return Played(*(fmean(getattr(each, name) for each in runs) for name in Played.__struct_fields__))


def _table(
    late: Mapping[tuple[str, float], Sequence[Played]], early: Mapping[tuple[str, float], Sequence[Played]]
) -> str:
    lines = [
        "| profiles | failing batches | commitment | in time | cost of 1000 requests |",
        "|---|---|---|---|---|",
    ]
    for (case, failures), runs in late.items():
        for name, mean in (("late", _mean(runs)), ("early", _mean(early[case, failures]))):
            lines.append(f"| {case} | {failures:.0%} | {name} | {mean.in_time:.2%} | {mean.cost:.0f} |")
    return "\n".join(lines) + "\n"


EXPERIMENT = PaperExperiment(
    "llama",
    "wrong profiles and failing batches hardly matter where a configuration is chosen when a stage starts",
    "Romero, Zhao, Yadwadkar and Kozyrakis, Llama, SoCC 2021",
    given="shares of the time left on every path, configurations chosen late, corrected profiles, 3 % of failures, "
    "second runs of stragglers",
    assumed="a DAG of two paths, its profiles, prices, eight cheap and two dear partitions, a target of 300 ms, "
    "how often batches straggle, and by how much",
    run=run,
)
