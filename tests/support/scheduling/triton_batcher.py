"""A model under Triton's dynamic batcher in virtual time: requests sent, batches run, outcomes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PipelineConfig, PolicyConfig, PriorityLevels
from sluice.batcher.interface.decisions import AnyDecision, CompleteRequest, DispatchBatch, Settlement
from sluice.batcher.interface.events import AnyEvent, PartitionReady, RequestArrived
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.policies.timeout import TimeoutConfig
from sluice.batcher.scheduler.scheduler import Scheduler
from sluice.models.dynamic_batching import QueuePolicy
from sluice.models.profiles.latency_table import LatencyTable
from tests.support.scheduling.builders import MS, S, model, single, spec_of
from tests.support.scheduling.services import WithoutConfidences

NEVER = 3600 * S
DIRECT = (single("m:1", keyed=True), single("busy:1"))


class Sent(NamedTuple):
    """A request with its arrival, and its timeout if it has one."""

    at_ns: int
    rows: int = 1
    key: str = ""
    priority: int = 0
    timeout_ns: int = 0


class Machine(WithoutConfidences):
    """A machine on which a batch takes 1 ms, or `took_ns` by its number or its model."""

    def __init__(self, took_ns: Mapping[str | int, int]) -> None:
        self._took_ns = took_ns

    def batch_ns(self, batch: DispatchBatch) -> int:
        return self._took_ns.get(batch.batch, self._took_ns.get(batch.model, MS))


class Run:
    """The result of a simulation: rows and requests of the model's batches, and the outcome and end of every request.

    The model `busy:1` occupies the same partitions until `busy_ns`; `took_ns` is by model, or by number of a batch.
    """

    def __init__(
        self,
        policy: PolicyConfig,
        sent: Sequence[Sent],
        *,
        pipelines: Sequence[PipelineConfig] = DIRECT,
        max_batch: int = 8,
        took_ns: Mapping[str | int, int] | None = None,
        busy_ns: int = 0,
        partitions: int = 1,
        events: Sequence[tuple[int, AnyEvent]] = (),
    ) -> None:
        times = {"m:1": MS, "busy:1": busy_ns or MS, "pre:1": 1} | dict(took_ns or {})
        tables = {str(key): LatencyTable(((1, ns),)) for key, ns in times.items() if isinstance(key, str)}
        names = [f"cpu{number}" for number in range(partitions)]
        spec = spec_of(
            [model("m:1", max_batch, policy), model("busy:1"), model("pre:1", 64)],
            pipelines,
            partitions=[*names, "before"],
        )
        self.rows: Counter[str] = Counter()
        self.stats: Counter[int] = Counter()
        self.batches: list[list[int]] = []
        self.ended: dict[int, tuple[Outcome, int]] = {}
        self.completed: list[int] = []
        self.reasons: dict[int, str] = {}
        self.scheduler = Scheduler(spec)
        simulator = Simulator(self.scheduler, Machine(times), self._observe)
        for name in names:
            simulator.at(0, PartitionReady(name, {key: tables[key] for key in ("m:1", "busy:1")}))
        simulator.at(0, PartitionReady("before", {"pre:1": tables["pre:1"]}))
        if busy_ns:
            simulator.at(0, RequestArrived(-1, "busy:1", 1, NEVER))
        for number, each in enumerate(sent):
            expires_ns = each.at_ns + each.timeout_ns if each.timeout_ns else 0
            event = RequestArrived(
                number, "m:1", each.rows, NEVER, each.key, priority=each.priority, expires_ns=expires_ns
            )
            simulator.at(each.at_ns, event)
        for at_ns, other in events:
            simulator.at(at_ns, other)
        simulator.run()
        assert self.scheduler.requests == {}
        self.ended.pop(-1, None)

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        check_invariants(self.scheduler)
        for decision in decisions:
            if isinstance(decision, DispatchBatch):
                self.rows[decision.model] += decision.rows
            if isinstance(decision, DispatchBatch) and decision.model == "m:1":
                self.stats[decision.rows] += 1
                self.batches.append([member.request for member in decision.members])
            if isinstance(decision, Settlement):
                assert decision.request not in self.ended
                self.ended[decision.request] = (decision.outcome, now_ns)
                if isinstance(decision, CompleteRequest):
                    self.completed.append(decision.request)
                else:
                    self.reasons[decision.request] = getattr(decision, "reason", "")

    @property
    def done_ms(self) -> list[float]:
        """Time of each request's answer, in the order of arrival."""
        assert {outcome for outcome, _ in self.ended.values()} == {Outcome.COMPLETED}
        return [self.ended[request][1] / MS for request in sorted(self.ended)]

    def outcomes(self) -> list[Outcome]:
        return [self.ended[request][0] for request in sorted(self.ended)]


def timeout_policy(
    preferred: tuple[int, ...] = (2, 6),
    delay_ns: int = 10 * S,
    *,
    levels: int = 0,
    default: int = 0,
    policies: Mapping[int, QueuePolicy] | None = None,
    preserve_ordering: bool = False,
    policy: QueuePolicy | None = None,
) -> PolicyConfig:
    config = PriorityLevels(levels, default, policy or QueuePolicy(), dict(policies or {}))
    return TimeoutConfig(preferred, delay_ns, levels=config, preserve_ordering=preserve_ordering)
