"""Models come to be held again where it is needed: after a partition is lost for good, and when they are asked for."""

from sluice.batcher.drivers.invariants import check_invariants
from sluice.batcher.drivers.simulator import Simulator
from sluice.batcher.interface.config import PartitionConfig, ScheduledModel
from sluice.batcher.interface.decisions import (
    AnyDecision,
    BuildPlan,
    CompleteRequest,
    DispatchBatch,
    LoadModel,
    RejectRequest,
    UnloadModel,
)
from sluice.batcher.interface.events import AnyEvent, PartitionLost, PartitionReady
from sluice.batcher.interface.outcome import Outcome
from sluice.batcher.planner.build import build_plan
from sluice.batcher.planner.live import LivePlanner
from sluice.batcher.policies.deadline import DeadlineSettings
from sluice.batcher.scheduler.scheduler import Scheduler
from tests.support.scheduling.builders import MS, ONE, S, arrival, spec_of
from tests.support.scheduling.services import WithoutConfidences

TOO_LARGE = "z"


class Run(WithoutConfidences):
    """A run in virtual time on partitions that hold models of one unit of memory each, with plans as they are made."""

    def __init__(self, rooms: dict[str, int], held: dict[str, str], models: str = "kmn") -> None:
        spec = spec_of(
            [ScheduledModel(key, 1, DeadlineSettings(), memory_bytes=100 if key == TOO_LARGE else 1) for key in models],
            partitions=[PartitionConfig(name, "cpu1", memory_bytes=room) for name, room in rooms.items()],
        )
        tables = dict.fromkeys(models, ONE)
        self.scheduler = Scheduler(spec, LivePlanner())
        self.simulator = Simulator(
            self.scheduler, self, self._observe, build_plan=build_plan, tables=dict.fromkeys(rooms, tables)
        )
        for name, keys in held.items():
            self.simulator.at(0, PartitionReady(name, dict.fromkeys(keys, ONE)))
        self.moves: list[tuple[int, str]] = []
        self.plans_ns: list[int] = []
        self.plans: list[BuildPlan] = []
        self.answered: list[int] = []
        self.refused: list[int] = []

    def play(self, *arrivals: tuple[int, str]) -> None:
        """Requests for these models come at these times; ends when nothing is left to happen."""
        numbered = enumerate(sorted(arrivals))
        self.simulator.run((at_ns, arrival(number, at_ns + S, key)) for number, (at_ns, key) in numbered)

    @property
    def held(self) -> dict[str, str]:
        """The models on the partitions that are up."""
        partitions = self.scheduler.dispatcher.fleet.partitions
        return {name: "".join(sorted(state.models)) for name, state in partitions.items() if state.ready}

    def batch_ns(self, batch: DispatchBatch) -> int:
        return MS

    def _observe(self, now_ns: int, event: AnyEvent | None, decisions: list[AnyDecision]) -> None:
        check_invariants(self.scheduler)
        for decision in decisions:
            match decision:
                case LoadModel():
                    self.moves.append((now_ns, f"{decision.partition}+{decision.model}"))
                case UnloadModel():
                    self.moves.append((now_ns, f"{decision.partition}-{decision.model}"))
                case BuildPlan():
                    self.plans_ns.append(now_ns)
                    self.plans.append(decision)
                case CompleteRequest():
                    self.answered.append(decision.request)
                case RejectRequest():
                    assert decision.outcome is Outcome.REJECTED_UNAVAILABLE
                    self.refused.append(decision.request)


def test_models_of_a_partition_that_stays_lost_are_held_by_others() -> None:
    run = Run({"a": 2, "b": 1, "c": 2}, {"a": "kn", "b": "m", "c": "kn"})
    run.simulator.at(10 * S, PartitionLost("b", "killed"))
    run.play((20 * S, "m"))
    assert run.moves == [(15 * S, "a+m"), (15 * S, "a-n")]
    assert run.held == {"a": "km", "c": "kn"}
    assert run.answered == [0]


def test_a_partition_that_is_back_soon_keeps_its_models() -> None:
    run = Run({"a": 2, "b": 1, "c": 2}, {"a": "kn", "b": "m", "c": "kn"})
    run.simulator.at(10 * S, PartitionLost("b", "killed"))
    run.simulator.at(15 * S - 1, PartitionReady("b", {"m": ONE}))
    run.play((20 * S, "m"))
    assert run.moves == []
    assert run.answered == [0]


def test_a_partition_that_is_back_after_long_is_planned_with_again() -> None:
    run = Run({"a": 2, "b": 1, "c": 2}, {"a": "kn", "b": "m", "c": "kn"})
    run.simulator.at(10 * S, PartitionLost("b", "killed"))
    run.simulator.at(60 * S, PartitionReady("b", {}))
    run.play()
    assert run.moves == [(15 * S, "a+m"), (15 * S, "a-n"), (60 * S, "b+k")]
    assert run.held == {"a": "km", "b": "k", "c": "kn"}


def test_a_partition_whose_worker_does_not_start_again_is_lost_since_the_first_time() -> None:
    run = Run({"a": 2, "b": 1, "c": 2}, {"a": "kn", "b": "m", "c": "kn"})
    for second in range(10, 40, 3):
        run.simulator.at(second * S, PartitionLost("b", "the model file is torn"))
    run.play()
    assert run.moves == [(15 * S, "a+m"), (15 * S, "a-n")]


def test_a_partition_whose_worker_never_starts_is_planned_without() -> None:
    run = Run({"a": 1, "b": 1}, {"a": "n"}, "n")
    run.simulator.at(S, PartitionLost("b", "the worker cannot be started"))
    run.play()
    gone = [order.observed.gone for order in run.plans]
    assert (run.plans_ns, gone) == ([0, S, 6 * S], [(), (), ("b",)])


def test_without_room_for_all_what_is_asked_for_most_replaces_what_is_asked_for_less() -> None:
    run = Run({"a": 1, "b": 1}, {"a": "n", "b": "m"}, "mn")
    run.simulator.at(10 * S, PartitionLost("b", "killed"))
    run.play(*((second * S, "m") for second in range(1, 20)))
    assert run.moves == [(15 * S, "a+m"), (15 * S, "a-n")]
    # Those of 10 s to 14 s wait for the partition to come back, until it does not; that of 15 s comes with the plan.
    assert (run.answered, run.refused) == ([*range(9), *range(15, 19)], [14])


def test_a_model_that_is_held_nowhere_is_loaded_for_the_first_request() -> None:
    run = Run({"a": 1}, {"a": "n"}, "mn")
    run.play((10 * S, "m"), (10 * S + MS, "m"))
    assert run.moves == [(10 * S, "a+m"), (10 * S, "a-n")]
    assert (run.refused, run.answered) == ([0], [1])


def test_a_model_that_is_asked_for_just_after_a_review_is_loaded_within_a_second() -> None:
    run = Run({"a": 1}, {"a": "n"}, "mn")
    run.play((10 * S, "n"), (10 * S + MS, "m"), (12 * S, "m"))
    assert run.moves == [(11 * S, "a+m"), (11 * S, "a-n")]
    assert (run.refused, run.answered) == ([1], [0, 2])


def test_a_model_that_fits_nowhere_calls_for_few_plans_and_for_none_when_nobody_asks() -> None:
    run = Run({"a": 1}, {"a": "n"}, f"n{TOO_LARGE}")
    run.play(*((second * S // 10, TOO_LARGE) for second in range(100, 1000)))
    assert run.moves == []
    assert run.refused == [*range(900)]
    assert len(run.plans_ns) < 10
    assert run.scheduler.next_wakeup_ns() is None
