"""Resizing: which partitions get other cores, or other shares of GPUs, as the plan or their load requires."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any, TypeVar

import msgspec

from sluice.batcher.fleet.fleet import Fleet
from sluice.batcher.interface.config import SchedulerSpec
from sluice.batcher.interface.decisions import AnyDecision, JudgeSteps, ResizePartition
from sluice.batcher.interface.events import PartitionsSampled, ResizeFailed, SizesKnown, StepsJudged
from sluice.batcher.interface.plan_data import Observed
from sluice.batcher.interface.resize_data import Ask, Cores, Split
from sluice.batcher.scheduler.core_steps import StepChoice, steps
from sluice.batcher.scheduler.replanner import CHANCE, NoReplanner, Replanner
from sluice.batcher.state import PipelineState
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S
from sluice.mps.partitions.balance import (
    SAMPLES_IN_A_ROW,
    BalanceSettings,
    CoreBalance,
    LoadChange,
    PartitionLoad,
    ResizeTrigger,
    ShareBalance,
)

HEADROOM = 1.25
"""The factor by which a step that only saves money must exceed the rates, beside their random variation."""
JUDGING = 0.05
"""The largest part of the time that may be spent on judging steps: if that takes long, it is done less often."""
_SECONDS_PER_HOUR = 3600

_replace = msgspec.structs.replace
_Held = TypeVar("_Held", Cores, int)


class Resizer:
    """Orders resizes, one after the other: some partitions must release a share before others can get it.

    What partitions have at the first sample is their own. Where latencies at other sizes are known, the plan decides
    about cores: the planner judges steps at the rates of the last samples together. Otherwise load decides, as it does
    about shares. After a resize that a client asked for, the pause and the samples start again.
    """

    def __init__(
        self,
        settings: BalanceSettings,
        fleet: Fleet,
        pipelines: Mapping[str, PipelineState],
        replanner: Replanner | NoReplanner,
        spec: Callable[[], SchedulerSpec],
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._pipelines = pipelines
        self._replanner = replanner
        self._spec = spec
        self._own: Mapping[str, Cores] | None = None  # None before the first sample
        self._seen: object = None  # what partitions had at the last sample; None after resizes of our own
        self._cores = CoreBalance(settings, {})
        self._shares: dict[str, ShareBalance] = {}
        self._orders: deque[ResizePartition] = deque()  # the first one is being carried out
        self._choice = StepChoice(settings)
        self._known = SizesKnown({}, {})
        self._observed: dict[tuple[str, str], LatencyTable] = {}  # the latest tables, by model and kind
        self._rows: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=SAMPLES_IN_A_ROW + 1)
        self._judgement = 0
        self._judging: tuple[float, Mapping[str, Cores]] | None = None  # when steps were found, and the cores then
        self._judge_s = -math.inf  # from when on steps may be judged
        self.handlers: dict[type[Any], Callable[[Any, int, list[AnyDecision]], None]] = {
            PartitionsSampled: self._sampled,
            SizesKnown: self._sizes_known,
            StepsJudged: self._judged,
            ResizeFailed: self._failed,
        }

    def resized(self, partition: str, decisions: list[AnyDecision]) -> None:
        """Record that a partition was resized, by our order or by a client's."""
        if not self._answered(partition, decisions):
            self._judging = None  # the steps began from other sizes

    def _failed(self, event: ResizeFailed, now_ns: int, decisions: list[AnyDecision]) -> None:
        self._orders = deque(list(self._orders)[:1])  # what was to follow may need what this one would have released
        self._answered(event.partition, decisions)

    def _answered(self, partition: str, decisions: list[AnyDecision]) -> bool:
        """Give the order that follows the one for a partition, if that was being carried out."""
        if not self._orders or self._orders[0].partition != partition:
            return False
        self._orders.popleft()
        self._seen = None
        decisions.extend(list(self._orders)[:1])
        return True

    def _sampled(self, event: PartitionsSampled, now_ns: int, decisions: list[AnyDecision]) -> None:
        if self._orders:
            return
        now_s, before, held = now_ns / NS_PER_S, self._seen, (event.cores, event.shares)
        self._seen = held
        if self._own is None:
            self._own = event.cores
            self._cores = CoreBalance(self._settings, event.cores)
            self._shares = {device: ShareBalance(self._settings, shares) for device, shares in event.shares.items()}
            return
        if before not in (None, held):  # by a client, which is not to be undone at once
            self._judging = None
            self._choice.changed(now_s)
            self._cores.note_change(now_s)
            for balance in self._shares.values():
                balance.note_change(now_s)
            return
        if self._known.tables:
            self._ask_plan(event, self._own, now_ns, decisions)
        else:
            change = self._cores.next_change(now_s, _loads(event.cores, event), event.spare)
            self._order_by_load(change, event.cores, event)
        for device, balance in self._shares.items():
            shares = event.shares[device]
            share = balance.next_change(now_s, _loads(shares, event), event.unpromised[device])
            self._order_by_load(share, shares, event)
        decisions.extend(list(self._orders)[:1])

    def _order_by_load(
        self, change: LoadChange[_Held] | None, held: Mapping[str, _Held], event: PartitionsSampled
    ) -> None:
        if change is not None:
            name, after = change
            before = held[name]
            reason = "busy" if _size(after) > _size(before) else "idle"
            figures: dict[str, float | tuple[str, ...]] = {"busy": round(event.busy.get(name, 0.0), 3)}
            self._orders.append(ResizePartition(name, after, before, ResizeTrigger.LOAD, reason, figures))

    # -- by the plan

    def _sizes_known(self, event: SizesKnown, now_ns: int, decisions: list[AnyDecision]) -> None:
        self._known = event

    def _ask_plan(
        self, event: PartitionsSampled, own: Mapping[str, Cores], now_ns: int, decisions: list[AnyDecision]
    ) -> None:
        """Have the planner judge steps, unless it does already or has done so too recently."""
        now_s = now_ns / NS_PER_S
        if now_s < self._judge_s or self._judging is not None:
            return
        assert isinstance(self._replanner, Replanner), "the plan is asked for steps only where there is one"
        observed = self._replanner.observe(now_ns)
        self._rows.append((now_s, {name: pipeline.arrived_rows for name, pipeline in self._pipelines.items()}))
        if len(self._rows) < 2 or not event.cores.keys() <= set(observed.up):
            self._choice.look(now_s, None)
            return
        spec = self._spec()
        rates, later = self._rates(spec)
        observed = _replace(observed, rates=rates, tables=self._tables(spec, observed))
        self._judgement += 1
        self._judging = now_s, event.cores
        splits = tuple(self._splits(spec, event, own))
        decisions.append(JudgeSteps(self._judgement, observed, later, splits))

    def _judged(self, event: StepsJudged, now_ns: int, decisions: list[AnyDecision]) -> None:
        if self._judging is None or event.judgement != self._judgement:
            return
        found_s, held = self._judging
        self._judging = None
        self._judge_s = found_s + (now_ns / NS_PER_S - found_s) / JUDGING
        ask = self._choice.look(found_s, event.ask)
        if ask is not None:
            idle, why = not self._orders, (ResizeTrigger.PLAN, ask.reason, _figures(ask))
            self._orders.extend(ResizePartition(name, cores, held[name], *why) for name, cores in ask.step.changes)
            decisions.extend(list(self._orders)[:idle])

    def _splits(self, spec: SchedulerSpec, event: PartitionsSampled, own: Mapping[str, Cores]) -> Iterator[Split]:
        """The steps to sizes that are known."""
        configs = {each.name: each for each in spec.partitions}
        for step in steps(event.cores, own, event.spare):
            after = [
                # The models that a partition holds and may hold stay.
                _replace(configs[name], kind=size.kind, price=size.price, share=size.share)
                for name, cores in step.changes
                for size in self._known.sizes[name][len(cores) - 1 : len(cores)]
            ]
            if len(after) == len(step.changes) and all(each.kind in self._known.tables for each in after):
                yield Split(step, tuple(after))

    def _rates(self, spec: SchedulerSpec) -> tuple[dict[str, float], dict[str, float]]:
        """Rows a second, and the highest rates that are to be expected in the ordinary course of things."""
        (begin_s, before), (end_s, rows) = self._rows[0], self._rows[-1]
        elapsed_s = max(end_s - begin_s, 1e-9)
        objectives = {each.name for each in spec.pipelines if each.slo_ns}
        came = {name: count - before.get(name, 0) for name, count in rows.items()}
        rates = {name: count / elapsed_s for name, count in came.items()}
        # With an objective, a single request after a long time must meet it as well.
        sure = {name: max(count, int(name in objectives and rows[name] > 0)) for name, count in came.items()}
        return rates, {
            name: HEADROOM * rates[name] + CHANCE * math.sqrt(count) / elapsed_s for name, count in sure.items()
        }

    def _tables(self, spec: SchedulerSpec, observed: Observed) -> dict[str, dict[str, LatencyTable]]:
        """The observed latencies; those at other sizes as last observed, else as stored, with the same correction."""
        self._observed = {key: table for key, table in self._observed.items() if key[0] in observed.tables}
        present = {each.kind for each in spec.partitions}
        tables: dict[str, dict[str, LatencyTable]] = {}
        for key, by_kind in observed.tables.items():
            self._observed |= {(key, kind): table for kind, table in by_kind.items() if kind in present}
            estimates = self._fleet.models[key].estimates
            correction = median([estimates[kind].correction for kind in by_kind if kind in present] or [1.0])
            tables[key] = dict(by_kind)
            for kind, stored in self._known.tables.items():
                if kind not in present and key in stored:
                    tables[key][kind] = self._observed.get((key, kind)) or _slower(stored[key], correction)
        return tables


class NoResizer:
    """Replaces `Resizer` where only clients resize partitions."""

    def __init__(self) -> None:
        self.handlers: Mapping[type[Any], Callable[[Any, int, list[AnyDecision]], None]] = {}

    def resized(self, partition: str, decisions: list[AnyDecision]) -> None:
        """Nothing follows."""


def _loads(held: Mapping[str, _Held], event: PartitionsSampled) -> dict[str, PartitionLoad[_Held]]:
    return {name: PartitionLoad(each, event.busy.get(name, 0.0)) for name, each in held.items()}


def _size(held: Cores | int) -> int:
    return held if isinstance(held, int) else len(held)


def _figures(ask: Ask) -> dict[str, float | tuple[str, ...]]:
    """The pipelines that miss their objectives, the load of the busiest partitions and the costs, before and after."""
    figures: dict[str, float | tuple[str, ...]] = {}
    for when, judged in (("", ask.before), ("_after", ask.after)):
        figures |= {
            f"missed{when}": judged.missed,
            f"busiest{when}": round(judged.busiest, 3),
            f"cost_per_hour{when}": float(f"{judged.cost * _SECONDS_PER_HOUR:.4g}"),
        }
    return figures


def _slower(table: LatencyTable, times: float) -> LatencyTable:
    return LatencyTable(tuple((size, max(round(latency * times), 1)) for size, latency in table.cells))
