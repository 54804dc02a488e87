"""The parts of the document that do not depend on what is asked: the server, pipelines, partitions, and troubles."""

from collections.abc import Generator
from typing import Any

from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.state import PartitionState
from sluice.gateway.observability.traces.explanation import explain
from sluice.gateway.observability.traces.trace import Trace
from sluice.gateway.overview.counters import Window
from sluice.gateway.overview.pieces import MAX_TEXT, rounded
from sluice.gateway.overview.plans import PlanBoard
from sluice.gateway.overview.sampled import Sampled
from sluice.gateway.overview.shape import kind_of
from sluice.gateway.partitions.inventory import Enforcement, PartitionStatus
from sluice.gateway.version import is_compiled
from sluice.models.pipelines.pipeline import PERCENTILE, Pipeline
from sluice.models.spec import public_key

MAX_REASONS = 5
MAX_RESIDENT = 4
OVERLOAD_SHARE, OVERLOAD_LEAST = 0.01, 10
"""The share of the requests of the window, and their least number, that are refused by a server that is overloaded."""
RECOUNT_STEPS = 10
"""Steps after which the memory of models is counted again, since it may be measured again."""
_OVERLOAD = (
    Outcome.REJECTED_DEADLINE,
    Outcome.REJECTED_QUEUE_FULL,
    Outcome.REJECTED_MEMORY,
    Outcome.EVICTED_DEADLINE,
)
_OUTCOMES = tuple(Outcome)


class Rows:
    """Writes these parts from what was sampled; the server began at `started_s` of the time of day."""

    def __init__(self, sampled: Sampled, plans: PlanBoard, started_s: float) -> None:
        self._sampled = sampled
        self._sources = sampled.sources
        self._plans = plans
        self._started_s = started_s
        self._memory: dict[str, tuple[object, int]] = {}

    def server(self, now_s: float) -> dict[str, Any]:
        """The server: its version, its state and why it is not ready."""
        state, reasons = self._state()
        return {
            "name": self._sources.registry.server_name,
            "version": self._sources.registry.server_version,
            "compiled": is_compiled(),
            "now_s": now_s,
            "started_s": self._started_s,
            "tick_s": 1.0,
            "state": state,
            "reasons": [reason[:MAX_TEXT] for reason in reasons[:MAX_REASONS]],
            "front_ends": self._sources.front_ends,
            "currency": "",
        }

    def totals(self, queued_rows: int) -> dict[str, Any]:
        """All pipelines together."""
        rates = self._rates(self._sampled.recorder.totals)
        return {**rates, "in_flight": self._sources.in_flight(), "queued_rows": queued_rows}

    def queued_rows(self) -> Generator[None, None, int]:
        """The rows that wait for models, counted in slices."""
        queued = 0
        for number, model in enumerate(list(self._sources.scheduler.dispatcher.models.values())):
            queued += model.outstanding
            if number % 64 == 63:
                yield
        for number, partition in enumerate(self._sources.scheduler.dispatcher.fleet.partitions.values()):
            queued -= sum(batch.rows for batch in partition.batches)
            if number % 64 == 63:
                yield
        return max(queued, 0)

    def pipeline(self, name: str) -> dict[str, Any]:
        """A pipeline of the list."""
        pipeline, track = self._sampled.served[name], self._sampled.recorder.tracks.get(name)
        row = {
            "name": name,
            "kind": kind_of(pipeline),
            **self._rates(track.window if track is not None and track.window else None),
            "objective_ms": pipeline.slo_ms,
            "percentile": self.percentile(pipeline),
            "headroom": rounded(self._plans.headroom(pipeline)),
        }
        del row["cancelled_per_s"]
        return row

    def percentile(self, pipeline: Pipeline) -> float:
        """The percentile that the objective of a pipeline is for."""
        state = self._sampled.state(pipeline)
        return PERCENTILE if state is None else state.config.percentile

    def partition(self, name: str) -> dict[str, Any]:
        """A partition: its state, what it runs, its memory and its models."""
        sources = self._sources
        status, quarantined = sources.inventory.statuses.get(name), sources.quarantined().get(name)
        partition = sources.scheduler.dispatcher.fleet.partitions[name]
        ready = sources.inventory.is_up(name)
        state, reason = "ready", ""
        if quarantined is not None:
            state, reason = "quarantined", quarantined.reason
        elif not ready:
            lost = "" if status is None else status.lost
            state, reason = ("lost", lost) if lost else ("starting", "")
            if sources.inventory.is_vacant(name):
                state = "vacant"
        resident = self._resident(partition)
        limit = sources.scheduler.spec.partitions[partition.number].memory_bytes or None
        held = self._held_bytes(partition)
        running = partition.batches[0] if partition.batches else None
        return {
            "name": name,
            "kind": partition.kind,
            "ready": ready,
            "state": state,
            "reason": reason[:MAX_TEXT],
            "node": "" if status is None else status.node,
            "url": "" if status is None else status.url,
            "proof": _proof(status),
            "busy": rounded(self._sampled.recorder.busy(name)),
            "running": None if running is None else {"model": public_key(running.queue_key[0]), "rows": running.rows},
            "memory_bytes": limit,
            "memory_free_bytes": None if limit is None else max(limit - held, 0),
            "models": len(partition.models),
            "resident": resident,
            "resident_more": len(partition.models) - len(resident),
        }

    def _resident(self, partition: PartitionState) -> list[str]:
        """Some models that a partition holds, those that ran last first."""
        recent = [
            public_key(key) for key in self._sampled.timeline.recent_models(partition.name) if key in partition.models
        ]
        found = dict.fromkeys(recent[:MAX_RESIDENT])
        for key in () if len(found) >= MAX_RESIDENT else sorted(partition.models)[: 2 * MAX_RESIDENT]:
            if len(found) < MAX_RESIDENT:
                found[public_key(key)] = None
        return list(found)

    def _held_bytes(self, partition: PartitionState) -> int:
        """The memory of the models that a partition holds; counted again from time to time."""
        known = self._memory.get(partition.name)
        if known is None or known[0] is not partition.models or self._sampled.step % RECOUNT_STEPS == 0:
            models = self._sources.scheduler.dispatcher.fleet.models
            held = sum(models[key].config.memory_on(partition.kind) for key in partition.models)
            known = self._memory[partition.name] = (partition.models, held)
        return known[1]

    def trouble(self, trace: Trace) -> dict[str, Any]:
        """A request that was not answered in time, with the sentence that explains it."""
        explained = explain(trace, trace.ended_ns)
        return {
            "id": explained.id[:MAX_TEXT],
            "pipeline": public_key(explained.pipeline),
            "outcome": explained.outcome,
            "at_s": self._sampled.day_s(trace.ended_ns),
            "total_ms": explained.total_ms,
            "deadline_ms": explained.deadline_ms,
            "cause": explained.cause,
            "sentence": explained.sentence[:MAX_TEXT],
        }

    def _rates(self, window: Window | None) -> dict[str, float | None]:
        """The numbers of the strip, and of a row of the list."""
        window_s = self._sampled.recorder.window_s
        ended = None if window is None else window.ended

        def per_s(count: int) -> float | None:
            return rounded(count / window_s) if window_s else None

        return {
            "requests_per_s": per_s(ended.total if ended else 0),
            "in_time": rounded(ended.in_time) if ended else None,
            "p50_ms": rounded(window.quantile_ms(0.5)) if window else None,
            "p99_ms": rounded(window.quantile_ms(0.99)) if window else None,
            "late_per_s": per_s(ended.late if ended else 0),
            "refused_per_s": per_s(ended.refused if ended else 0),
            "failed_per_s": per_s(ended.failed if ended else 0),
            "cancelled_per_s": per_s(ended.cancelled if ended else 0),
            "cost_per_1000_good": rounded(window.cost_per_1000_good) if window else None,
        }

    def _state(self) -> tuple[str, list[str]]:
        """The state of the server in a word, and the reasons why it is not ready."""
        sources = self._sources
        inventory, registry = sources.inventory, sources.registry
        if sources.has_failed():
            return "failed", ["the scheduler failed; the server stops"]
        if registry.draining:
            return "draining", ["the server is stopping: it finishes the open requests"]
        if registry.leaving:
            return "draining", ["the server is about to stop: it serves on, but is not ready"]
        down = [name for name in inventory.names if not inventory.is_up(name) and not inventory.is_vacant(name)]
        reasons = [self._why_down(name) for name in down[:MAX_REASONS]]
        if not inventory.in_service.is_set():
            return "starting", reasons
        if not registry.server_ready():
            return "degraded", reasons or ["nothing is served"]
        if down:
            return "degraded", reasons
        counts = self._sampled.recorder.totals.sums
        refused = {each: counts[_OUTCOMES.index(each)] for each in _OVERLOAD}
        total = self._sampled.recorder.totals.ended.total
        if sum(refused.values()) >= max(OVERLOAD_SHARE * total, OVERLOAD_LEAST):
            most = max(refused, key=refused.__getitem__)
            share = sum(refused.values()) / total
            return "overloaded", [f"{share:.1%} of the requests of the last seconds were refused, most as {most.value}"]
        return "ready", []

    def _why_down(self, name: str) -> str:
        if (quarantined := self._sources.quarantined().get(name)) is not None:
            return f"partition {name} is in quarantine: {quarantined.reason}"
        status = self._sources.inventory.statuses.get(name)
        if status is None:
            return f"Triton server {name} is not reachable"
        return f"partition {name} is down: {status.lost}" if status.lost else f"partition {name} is starting"


def _proof(status: PartitionStatus | None) -> str:
    """The proof of a partition's limits, in words."""
    if status is None:
        return "not known: Sluice does not start this server"
    if status.enforcement is Enforcement.ENFORCED:
        return "enforced"
    if status.enforcement is Enforcement.UNENFORCED:
        return f"not enforced: {'; '.join(status.reasons)}"[:MAX_TEXT]
    return "not known yet"
