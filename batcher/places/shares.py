"""Fair shares: how much of the time of partitions each pipeline, and each of its clients, may count on.

Shares are max-min fair by weight over what is asked for (Bertsekas and Gallager, Data Networks, section 6.5): who asks
for less than its share gets that, and the others divide what is left. Who asks for more sees partitions that are as
slow as its share makes them, so that the time between its places is left to the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sluice.batcher.fleet.member_table import soonest_start_ns
from sluice.batcher.interface.events import RequestArrived
from sluice.batcher.places.planned_batches import length_ns, length_on_ns
from sluice.batcher.state import (
    ClientState,
    LinkClass,
    ModelState,
    PartitionGroup,
    PipelineState,
    PlannedBatch,
)
from sluice.models.units import NS_PER_MS, NS_PER_S

RENEW_NS = 10 * NS_PER_MS
"""Shares are computed again after this time, when a request arrives."""
PIPELINES_A_RENEWAL = 50
"""With requests for more pipelines than this, shares are renewed less often in proportion."""
MOST_PAIRS = 150
"""Shares of this many pipelines on groups are computed at a time, when a request arrives."""
FORGET_NS = NS_PER_S
"""Who had no request for this long asks for nothing."""
MOST_LEFT = 0.5
"""The most of the time to its deadline that a pipeline leaves to others, in parts of what is not its share."""
FILLED = 0.9
"""The part of its share that a pipeline may fill with places, so that shares bind before the partitions are full."""
HEADROOM = 1.3
"""Pipelines that ask for less than their share are left this many times what they ask for."""
TOLERANCE = 1.1
"""A pipeline asks for more than its share if it asks for more than this many times its share: rates are estimates."""
AMPLE_TOLERANCE = 1.3
"""The same where the time of a group is not all asked for in full batches: usual ones overstate it."""
FULL = 1.0
"""From here on, as a multiple of a group's time that is asked for, batches are filled whatever that adds to them."""
SMOOTHED_NS = 250 * NS_PER_MS
"""The rates of rows are smoothed over this time."""
SILENT = 8
"""The rate of rows falls once none has come for this many times as long as usual."""
CLIENTS = 1024
"""The most clients of a pipeline that are distinguished; all others count as one."""
OTHERS = ""
"""The client of requests that name none, and of those that are too many."""
CLIENT_WEIGHT = 0.05
"""Weight of one request in the smoothed time between two rows of a client."""

_T = TypeVar("_T", bound=Hashable)


class _GroupShares(NamedTuple):
    """The parts of a group's time by pipeline: `part` includes what nobody asks for, `bound` has who asks for more.

    `asked` is what all ask for together, in full batches; `modest_ns` is the time that a batch of each of the others
    takes of one partition.
    """

    part: dict[PipelineState, float]
    bound: dict[PipelineState, float]
    asked: float
    modest_ns: int


class FairShares:
    """The shares of all pipelines in the groups that they use; they are due to be renewed at `renew_ns`.

    `bound` are the pipelines that ask for more than their share of some group.
    """

    def __init__(self) -> None:
        self._rates: dict[PipelineState, float] = {}  # rows per ns
        self._groups: dict[PartitionGroup, _GroupShares] = {}
        self.bound: dict[PipelineState, None] = {}
        self.renew_ns = 0
        self._pending: dict[PartitionGroup, dict[PipelineState, float]] = {}  # rates, of the groups to renew
        self._renewed: dict[PartitionGroup, _GroupShares] = {}
        self._costs = _Costs()
        self._renewed_ns = 0
        self._clear_ns = 0
        self._of_clients: dict[tuple[PipelineState, PartitionGroup], dict[ClientState, float]] = {}

    def add(self, pipeline: PipelineState) -> None:
        """Count a pipeline that has had no requests for `FORGET_NS` or more."""
        self._rates[pipeline] = 0.0

    def part(self, group: PartitionGroup, pipelines: Sequence[PipelineState]) -> float:
        """The share of some pipelines together, with their part of what nobody asks for."""
        shares = self._shares(group)
        return sum([shares.part.get(pipeline, 1.0) for pipeline in pipelines])

    def contended(self, group: PartitionGroup) -> bool:
        """True if several pipelines have had requests lately."""
        shares = self._groups.get(group)
        return shares is not None and len(shares.part) > 1

    def start_ns(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> int:
        """When a request may start, if its pipeline or its client asks for more than its share; else now.

        A pipeline that does not share its batches may always have a full one planned.
        """
        if now_ns >= self.renew_ns:
            self._renew(now_ns)
        if not (pipeline.clients or pipeline in self.bound):
            return now_ns
        start_ns = now_ns
        client = self.client(event, pipeline)
        costs = _Costs()
        for group in dict.fromkeys(group for model in pipeline.expected_runs for group in model.groups):
            shares = self._shares(group)
            part = shares.bound.get(pipeline)
            if part is None and not client:
                continue
            row_ns = costs.full_ns(pipeline, group) / group.counted
            begin_ns = soonest_start_ns(group, now_ns)
            if part is not None and max(pipeline.planned_rows) + event.rows > _own_rows(pipeline, group):
                ahead_ns = costs.planned_ns(pipeline, group, pipeline.planned_rows) / group.counted
                start_ns = max(start_ns, begin_ns + int((ahead_ns + event.rows * row_ns) / (FILLED * part)))
            if client and row_ns:
                whole = shares.part.get(pipeline, 1.0)
                own_part = self._bound_clients(pipeline, group, row_ns, whole, now_ns).get(client)
                if own_part is not None:
                    ahead_ns = costs.planned_ns(pipeline, group, client.planned_rows) / group.counted
                    start_ns = max(start_ns, begin_ns + int((ahead_ns + event.rows * row_ns) / own_part))
        return start_ns

    def _bound_clients(
        self, pipeline: PipelineState, group: PartitionGroup, row_ns: float, whole: float, now_ns: int
    ) -> dict[ClientState, float]:
        """The parts of the clients that ask for more than theirs of a pipeline, computed again with the shares."""
        known = self._of_clients.get((pipeline, group))
        if known is None:
            demands = {
                each: row_ns / present_gap_ns(each.row_gap_ns, each.last_row_ns, now_ns)
                for each in pipeline.clients.values()
                if each.row_gap_ns and now_ns - each.last_row_ns < FORGET_NS
            }
            parts, spare = fair_shares(demands, dict.fromkeys(demands, 1.0), whole)
            bound = {each: part for each, part in parts.items() if demands[each] > part}
            known = self._of_clients[pipeline, group] = {} if spare or len(parts) < 2 else bound
        return known

    def asked(self, group: PartitionGroup | None) -> float:
        """The time of a group that is asked for, in full batches, as a multiple of it."""
        shares = None if group is None else self._groups.get(group)
        return 0.0 if shares is None else shares.asked

    def is_cheaper_alone(self, batch: PlannedBatch, rows: float, added_ns: int, come: float) -> bool:
        """True if rows add more to a batch than one of their own takes, and too few `come` to fill the larger one.

        Rows that may not come to run are gathered in any case.
        """
        partition, model = batch.partition, batch.model
        if batch.variance or not model.by_deadline:
            return False
        estimate, filled = model.estimates[partition.kind], batch.rows + rows
        if added_ns <= length_ns(estimate, rows) + partition.hand_off_ns or self.asked(partition.group) >= FULL:
            return False
        return filled + come < next((size for size in estimate.sizes if size >= filled), filled)

    def is_entitled(self, pipeline: PipelineState, group: PartitionGroup | None) -> bool:
        """True if a pipeline asks for less than its share of a group, while others ask for more than theirs."""
        shares = None if group is None else self._groups.get(group)
        return shares is not None and bool(shares.bound) and pipeline not in shares.bound

    def left_ns(self, event: RequestArrived, pipeline: PipelineState, group: PartitionGroup | None, now_ns: int) -> int:
        """The time before its deadline that a pipeline which asks for more than its share leaves to the others.

        Without it, a partition is full up to the deadlines of all who come next.
        """
        if pipeline not in self.bound or group is None or (part := self._shares(group).bound.get(pipeline)) is None:
            return 0
        return int(min(self._shares(group).modest_ns, MOST_LEFT * (1 - part) * (event.deadline_ns - now_ns)))

    def forget(self, pipeline: PipelineState) -> None:
        """Forget a pipeline that is gone."""
        self.bound.pop(pipeline, None)
        self._rates.pop(pipeline, None)
        for shares in (*self._groups.values(), *self._renewed.values()):
            shares.part.pop(pipeline, None)
            shares.bound.pop(pipeline, None)
        for rates in self._pending.values():
            rates.pop(pipeline, None)

    @staticmethod
    def client(event: RequestArrived, pipeline: PipelineState) -> ClientState | None:
        """The account of a request's client; None where clients are not distinguished."""
        clients = pipeline.clients
        return (clients.get(event.client) or clients[OTHERS]) if clients else None

    @staticmethod
    def planned(client: ClientState, stage: int, rows: int) -> None:
        """Record that rows of a client have places for a stage, or (`rows` is negative) none any more."""
        client.planned_rows[stage] += rows

    def count(self, event: RequestArrived, pipeline: PipelineState, now_ns: int) -> None:
        """Count a request as demand of its client; clients are distinguished from the first that is named."""
        clients = pipeline.clients
        if not clients:
            clients[OTHERS] = ClientState([0] * pipeline.stage_count)
        client = clients.get(event.client)
        if client is None:
            if len(clients) >= CLIENTS and now_ns >= self._clear_ns:
                self._clear_ns = now_ns + RENEW_NS
                for name in [
                    each
                    for each, known in clients.items()
                    if each and not any(known.planned_rows) and now_ns - known.last_row_ns > FORGET_NS
                ]:
                    del clients[name]
            client = clients[OTHERS]
            if len(clients) < CLIENTS:
                client = clients[event.client] = ClientState([0] * pipeline.stage_count)
        silent_ns = now_ns - client.last_row_ns
        if silent_ns >= FORGET_NS or not client.last_row_ns:
            client.row_gap_ns = 0.0
        elif client.row_gap_ns:
            client.row_gap_ns += CLIENT_WEIGHT * (silent_ns / event.rows - client.row_gap_ns)
        else:
            client.row_gap_ns = silent_ns / event.rows
        client.last_row_ns = now_ns

    def _shares(self, group: PartitionGroup) -> _GroupShares:
        shares = self._groups.get(group)
        if shares is None:
            shares = self._groups[group] = _GroupShares({}, {}, 0.0, 0)
        return shares

    def _renew(self, now_ns: int) -> None:
        """Compute shares again; the more pipelines there are, the less often.

        Where many pipelines use many groups, each request that arrives computes some of them.
        """
        if not self._pending:
            self._begin_renewal(now_ns)
        self._renew_some(now_ns)

    def _begin_renewal(self, now_ns: int) -> None:
        weight = min((now_ns - self._renewed_ns) / SMOOTHED_NS, 1.0)
        self._renewed_ns = now_ns
        rates: dict[PipelineState, float] = {}
        users: dict[PartitionGroup, dict[PipelineState, float]] = {}
        for pipeline, before in self._rates.items():
            if now_ns - pipeline.last_row_ns >= FORGET_NS:
                continue
            rate = before
            if pipeline.row_gap_ns:
                present = 1 / present_gap_ns(pipeline.row_gap_ns, pipeline.last_row_ns, now_ns)
                rate = before + weight * (present - before) if before else present
                for model in pipeline.expected_runs:
                    for group in model.groups:
                        users.setdefault(group, {})[pipeline] = rate
            rates[pipeline] = rate
        self._rates = rates
        self._pending = users
        self._renewed = {}
        self._costs = _Costs()

    def _renew_some(self, now_ns: int) -> None:
        """Go on with the renewal: some of the groups, and with the last of them the shares that bind.

        What is computed in between goes by the shares that a group had before, until it has its new ones.
        """
        pending, renewed = self._pending, self._renewed
        pairs = 0
        while pending and pairs < MOST_PAIRS:
            group = next(iter(pending))
            rates = pending.pop(group)
            if rates and group.partitions:  # neither has gone since the renewal began
                pairs += len(rates)
                shares = renewed[group] = _group_shares(group, rates, self._costs)
                self._groups[group] = shares
        if pending:
            self.renew_ns = now_ns
            return
        self._groups, self._renewed = renewed, {}
        self._costs = _Costs()
        self._of_clients.clear()
        self.bound = {pipeline: None for shares in renewed.values() for pipeline in shares.bound}
        self.renew_ns = self._renewed_ns + RENEW_NS * (1 + len(self._rates) // PIPELINES_A_RENEWAL)


class _StageCost(NamedTuple):
    """The time that a row takes in a stage of partitions of a kind, by the part of its rows that each group has."""

    parts: Mapping[PartitionGroup, float]
    full_ns: float
    usual_ns: float


class _ModelCost(NamedTuple):
    """The times of full batches of a model on a kind, and of usual ones, and the part of its rows that each group has.

    `full` and `usual` are their rows.
    """

    parts: Mapping[PartitionGroup, float]
    full: int
    full_ns: int
    usual: int
    usual_ns: int


class _Costs:
    """The times that rows and batches take, computed once for each pipeline, kind and link in a renewal."""

    def __init__(self) -> None:
        self._parts: dict[ModelState, dict[PartitionGroup, float]] = {}
        self._of_models: dict[tuple[ModelState, str, LinkClass], _ModelCost] = {}
        self._known: dict[tuple[PipelineState, str, LinkClass], tuple[list[_StageCost], list[_ModelCost]]] = {}

    def of(self, pipeline: PipelineState, group: PartitionGroup) -> tuple[float, float, int]:
        """As `cost_ns` in full batches and in usual ones, and the time of a usual batch of each of its models (ns)."""
        key = pipeline, group.kind, group.link
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._costs_on(pipeline, group)
        full_ns = usual_ns = 0.0
        batch_ns = 0
        stages, models = known
        for parts, stage_full_ns, stage_usual_ns in stages:
            if (part := parts.get(group)) is not None:
                full_ns += stage_full_ns * part
                usual_ns += stage_usual_ns * part
        for each in models:
            if group in each.parts:
                batch_ns += each.usual_ns
        return full_ns, usual_ns, batch_ns

    def full_ns(self, pipeline: PipelineState, group: PartitionGroup) -> float:
        """As `cost_ns`."""
        return self.planned_ns(pipeline, group, [1] * pipeline.stage_count)

    def planned_ns(self, pipeline: PipelineState, group: PartitionGroup, rows: Sequence[int]) -> float:
        """The time that rows, given by stage, take of a group's partitions in full batches.

        What has run some of its stages takes only the time of the others.
        """
        total = 0.0
        for stage in pipeline.stages:
            model = stage.model
            if model is not None and (part := self._parts_of(model).get(group)) is not None:
                full = model.full_rows(model.estimates[group.kind])
                row_ns = pipeline.reach[stage.index] * length_on_ns(group, model, full) / full * part
                total += rows[stage.index] * row_ns
        return total

    def _costs_on(self, pipeline: PipelineState, group: PartitionGroup) -> tuple[list[_StageCost], list[_ModelCost]]:
        """The costs on all groups of a kind and class of links."""
        stages: list[_StageCost] = []
        for stage in pipeline.stages:
            model = stage.model
            if model is None or group.kind not in model.estimates:
                continue
            cost, reach = self._of_model(model, group), pipeline.reach[stage.index]
            full_ns, usual_ns = reach * cost.full_ns / cost.full, reach * cost.usual_ns / cost.usual
            stages.append(_StageCost(cost.parts, full_ns, usual_ns))
        models = [self._of_model(each, group) for each in pipeline.expected_runs if group.kind in each.estimates]
        return stages, models

    def _of_model(self, model: ModelState, group: PartitionGroup) -> _ModelCost:
        key = model, group.kind, group.link
        known = self._of_models.get(key)
        if known is None:
            full = model.full_rows(model.estimates[group.kind])
            usual = min(full, model.usual_rows)
            full_ns = length_on_ns(group, model, full)
            usual_ns = full_ns if usual == full else length_on_ns(group, model, usual)
            known = self._of_models[key] = _ModelCost(self._parts_of(model), full, full_ns, usual, usual_ns)
        return known

    def _parts_of(self, model: ModelState) -> dict[PartitionGroup, float]:
        parts = self._parts.get(model)
        if parts is None:
            parts = self._parts[model] = parts_of_rows(model)
        return parts


def _group_shares(group: PartitionGroup, rates: Mapping[PipelineState, float], costs: _Costs) -> _GroupShares:
    """The parts of a group's time, by the rows that come for each pipeline in a ns."""
    number = group.counted
    its_costs = {pipeline: costs.of(pipeline, group) for pipeline in rates}
    demands = {pipeline: its_costs[pipeline][1] * rate / number for pipeline, rate in rates.items()}
    weights = {pipeline: pipeline.config.weight for pipeline in demands}
    # Requests do not come evenly, so who asks for less than its share is left more than it asks for.
    parts, spare = fair_shares({pipeline: HEADROOM * demand for pipeline, demand in demands.items()}, weights)
    whole = sum(weights.values())
    asked = sum([its_costs[pipeline][0] * rate for pipeline, rate in rates.items()]) / number
    tolerance = TOLERANCE if asked >= FULL else AMPLE_TOLERANCE
    bound = {pipeline: part for pipeline, part in parts.items() if tolerance * part < demands[pipeline]}
    return _GroupShares(
        {pipeline: part + spare * weights[pipeline] / whole for pipeline, part in parts.items()},
        bound if len(parts) > 1 else {},
        asked,
        sum([its_costs[pipeline][2] for pipeline in demands if pipeline not in bound]) // number,
    )


def present_gap_ns(row_gap_ns: float, last_row_ns: int, now_ns: int) -> float:
    """The time between two rows: as before, or as long as none has come if that is much longer."""
    silent_ns = now_ns - last_row_ns
    return row_gap_ns if silent_ns < SILENT * row_gap_ns else silent_ns


def fair_shares(
    demands: Mapping[_T, float], weights: Mapping[_T, float], whole: float = 1.0
) -> tuple[dict[_T, float], float]:
    """The max-min fair share of each demand for a whole, and what is left of it. O(demands^2) at worst."""
    left, waiting = whole, dict(demands)
    shares: dict[_T, float] = {}
    while waiting:
        unit = left / sum([weights[each] for each in waiting])
        modest = [each for each, demand in waiting.items() if demand <= unit * weights[each]]
        if not modest:
            shares.update((each, unit * weights[each]) for each in waiting)
            return shares, 0.0
        for each in modest:
            shares[each] = waiting.pop(each)
            left -= shares[each]
    return shares, max(left, 0.0)


def cost_ns(pipeline: PipelineState, group: PartitionGroup) -> float:
    """The time that a row of a pipeline takes of a group's partitions, in full batches."""
    return _Costs().full_ns(pipeline, group) if pipeline.reach else 0.0


def _own_rows(pipeline: PipelineState, group: PartitionGroup) -> int:
    """Rows that a pipeline may always have planned: a full batch, where its batches are not shared with others."""
    models = [model for model in pipeline.expected_runs if group in model.groups]
    if any(len(model.pipelines) > 1 for model in models):
        return 0
    full = max(model.full_rows(model.estimates[group.kind]) for model in models)
    return full if full > 1 else 0


def part_of_rows(model: ModelState, group: PartitionGroup) -> float:
    """The part of a model's rows that a group runs, if all partitions are equally busy."""
    return 1.0 if len(model.groups) == 1 else parts_of_rows(model)[group]


def parts_of_rows(model: ModelState) -> dict[PartitionGroup, float]:
    """As `part_of_rows`, for each group of a model."""
    if len(model.groups) == 1:
        return {model.groups[0]: 1.0}
    alike = {(group.kind, group.link): group for group in model.groups}
    row_ns = {key: max(model.row_on_ns(group), 1) for key, group in alike.items()}
    rates = [each.counted / row_ns[each.kind, each.link] for each in model.groups]
    whole = sum(rates)
    return {group: rate / whole for group, rate in zip(model.groups, rates, strict=True)}
