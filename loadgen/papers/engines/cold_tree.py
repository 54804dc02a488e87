"""A pipeline that divides into two ways, and each of them again, whose models are all gone when a request comes."""

import random
from collections import Counter
from collections.abc import Iterator

import msgspec

from sluice.batcher.interface.config import (
    ConfidenceSpec,
    PartitionConfig,
    PipelineConfig,
    ScheduledModel,
    SchedulerSpec,
    StageConfig,
    WhenConfig,
)
from sluice.batcher.interface.decisions import AnyDecision, CombineOutputs, DispatchBatch, LoadModel, UnloadModel
from sluice.batcher.interface.events import AnyEvent, BatchCompleted, Confidences, ModelLoaded, RequestArrived
from sluice.batcher.interface.residency_config import Footprint, ResidencyConfig
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.loadgen.papers.engines.virtual_gateway import VirtualGateway
from sluice.models.pipelines.pipeline import Confidence
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_S

RUN_NS, LOAD_NS = NS_PER_S // 2, NS_PER_S
KIND = "gpu"
HALF_A_SECOND = LatencyTable.from_ms({1: 500.0})
DIVISIONS = 2
SEGMENT = 3
"""Stages of a way between two divisions, and after the last one."""
PATH = 1 + DIVISIONS * SEGMENT
"""Stages that a request runs."""
PERIOD_NS = 60 * NS_PER_S
OTHERS_NS = 30 * NS_PER_S
"""The time after a request at which requests for other models take all partitions."""
DEADLINE_NS = 100 * NS_PER_S
TREE = "tree"


class TreeRequest(msgspec.Struct, frozen=True):
    """One request that found no model loaded, and whether it went to the likelier side `throughout`.

    `waited_ns` is its latency beyond the time that its stages run. `locked_ns` is the time, summed over models, from
    the end of a load until the model ran or was evicted, or the request took another way. Of the `loads` some were
    `unused`, and `most_loads` are the most of one model.
    """

    throughout: bool
    waited_ns: int
    locked_ns: int
    loads: int
    unused: int
    most_loads: int


class _TreeStage(msgspec.Struct, frozen=True):
    """A stage behind the divisions at which requests took these `sides`; behind it comes a division if it `divides`."""

    name: str
    sides: tuple[int, ...]
    divides: bool
    config: StageConfig


class _Watched(msgspec.Struct):
    """The request under way: the models that were loaded and that ran, and the divisions that it has passed."""

    passed: int = 0
    ran_ns: int = 0
    locked_ns: int = 0
    loads: Counter[str] = msgspec.field(default_factory=Counter)
    ran: dict[str, None] = {}


def tree_stages() -> list[_TreeStage]:
    """A first stage, and behind each division two ways of `SEGMENT` stages; the likelier side is the second one."""
    stages = [_TreeStage("root", (), True, StageConfig("root", "root"))]
    divisions = [0]
    for depth in range(DIVISIONS):
        ends: list[int] = []
        for division in divisions:
            for side in range(2):
                sides = (*stages[division].sides, side)
                for number in range(SEGMENT):
                    name = f"{'lr'[sides[0]]}{''.join('lr'[each] for each in sides[1:])}{number}"
                    before = len(stages) - 1
                    config = StageConfig(name, name, (before,) if number else (), None)
                    if not number:
                        config = StageConfig(name, name, when=WhenConfig(division, side, 0.5))
                    divides = number == SEGMENT - 1 and depth < DIVISIONS - 1
                    stages.append(_TreeStage(name, sides, divides, config))
                ends.append(len(stages) - 1)
        divisions = ends
    return stages


class ColdTree:
    """Plays requests one after the other, which go to the likelier side with probability `likelier` at each division.

    Each model needs a partition for itself. Between two requests, other models run on all partitions. Loads and runs
    take up to `spread` more or less than is expected of them, in parts of that.
    """

    def __init__(
        self, residency: ResidencyConfig, likelier: float, partitions: int, seed: int, spread: float = 0.0
    ) -> None:
        self._likelier = likelier
        self._spread = spread
        self._times = random.Random(f"times {seed}")
        self._draw = random.Random(seed)
        self._stages = {stage.name: stage for stage in tree_stages()}
        self._others = [f"other{number}" for number in range(partitions)]
        names = [*self._stages, *self._others]
        spec = SchedulerSpec(
            tuple(map(self._model, names)),
            (
                PipelineConfig(TREE, tuple(stage.config for stage in self._stages.values())),
                *(PipelineConfig(other, (StageConfig(other, other),)) for other in self._others),
            ),
            tuple(PartitionConfig(f"gpu{number}", KIND, memory_bytes=1) for number in range(partitions)),
            residency=residency,
        )
        self._gateway = VirtualGateway(
            spec,
            {partition.name: dict.fromkeys(names, HALF_A_SECOND) for partition in spec.partitions},
            holding={},
            load_ns=lambda order: self._about(LOAD_NS),
            service=self,
            observe=self._observe,
        )
        self._sides: list[tuple[int, ...]] = []
        self._watched: list[_Watched] = []
        self._batches: dict[int, str] = {}
        self._locked: dict[str, int] = {}  # since when models are loaded that neither ran nor may be evicted

    def play(self, requests: int) -> list[TreeRequest]:
        """Run that many requests; to be called once."""
        self._sides = [
            tuple(int(self._draw.random() < self._likelier) for _ in range(DIVISIONS)) for _ in range(requests)
        ]
        played = self._gateway.play(self._arrivals(requests))
        own = sorted((each for each in played.requests if each.pipeline == TREE), key=lambda each: each.came_ns)
        assert all(each.outcome.answered for each in own), "no request of the tree is refused"
        return [
            TreeRequest(
                all(sides),
                each.ended_ns - each.came_ns - watched.ran_ns,
                watched.locked_ns,
                watched.loads.total(),
                sum(count for model, count in watched.loads.items() if model not in watched.ran),
                max(watched.loads.values()),
            )
            for each, sides, watched in zip(own, self._sides, self._watched, strict=True)
        ]

    def _model(self, name: str) -> ScheduledModel:
        footprint = Footprint(1, load_ns=LOAD_NS, table=HALF_A_SECOND)
        divides = name in self._stages and self._stages[name].divides
        confidences = tuple(ConfidenceSpec(f"side{side}", Confidence.MAX) for side in range(2)) if divides else ()
        return ScheduledModel(name, 1, DeadlineSettings(), confidences, memory_bytes=1, footprints={KIND: footprint})

    def _arrivals(self, requests: int) -> Iterator[tuple[int, AnyEvent]]:
        identity = requests
        for number in range(requests):
            now_ns = number * PERIOD_NS
            yield now_ns, RequestArrived(number, TREE, 1, now_ns + DEADLINE_NS)
            for other in self._others:
                yield now_ns + OTHERS_NS, RequestArrived(identity, other, 1, now_ns + OTHERS_NS + DEADLINE_NS)
                identity += 1

    # -- what the partitions do

    def batch_ns(self, batch: DispatchBatch) -> int:
        """Every stage takes about half a second."""
        took_ns = self._about(RUN_NS)
        if batch.model in self._stages:
            self._watched[-1].ran_ns += took_ns
        return took_ns

    def _about(self, usual_ns: int) -> int:
        return round(usual_ns * (1 + self._spread * self._times.uniform(-1, 1)))

    def batch_confidences(self, batch: DispatchBatch) -> Confidences:
        """The stage before a division is sure of all sides but the one that the request takes."""
        stage = self._stages.get(batch.model)
        if stage is None or not stage.divides:
            return ()
        taken = self._sides[batch.members[0].request][len(stage.sides)]
        return tuple((float(side != taken),) for side in range(2))

    def combined_confidences(self, combination: CombineOutputs) -> Confidences:
        """The tree has no combiners."""
        return ()

    # -- what is counted

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        if isinstance(event, RequestArrived) and event.pipeline == TREE:
            self._watched.append(_Watched())
        elif isinstance(event, ModelLoaded) and event.model in self._stages:
            self._locked[event.model] = now_ns
        elif isinstance(event, BatchCompleted) and (stage := self._stages.get(self._batches.pop(event.batch))):
            self._watched[-1].passed += stage.divides
        for decision in decisions:
            if isinstance(decision, LoadModel) and decision.model in self._stages:
                self._watched[-1].loads[decision.model] += 1
            elif isinstance(decision, UnloadModel):
                self._unlock(decision.model, now_ns)
            elif isinstance(decision, DispatchBatch):
                self._batches[decision.batch] = decision.model
                self._watched[-1].ran[decision.model] = None
                self._unlock(decision.model, now_ns)
        for model in [model for model in self._locked if self._is_aside(model)]:
            self._unlock(model, now_ns)

    def _is_aside(self, model: str) -> bool:
        """True if the request has passed a division to another side than the one that the model is on."""
        sides, passed = self._stages[model].sides, self._watched[-1].passed
        return sides[:passed] != self._sides[len(self._watched) - 1][: min(passed, len(sides))]

    def _unlock(self, model: str, now_ns: int) -> None:
        if (since_ns := self._locked.pop(model, None)) is not None:
            self._watched[-1].locked_ns += now_ns - since_ns
