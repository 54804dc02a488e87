"""The number of partitions of a class, at certain times and demands."""

from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from sluice.batcher.scaling.autoscaler import Autoscaler, ClassDemand
from tests.support.scheduling.builders import S

START_NS = 10 * S


class Rule:
    """A rule that is asked every 2 s, for partitions that are up at once."""

    def __init__(self, least: int = 1, most: int = 20, *, to_zero: bool = False) -> None:
        slots = tuple(f"edge-{number}" for number in range(most))
        self.autoscaler = Autoscaler(ScalingConfig(), ScaledClass("edge", slots, least, most, to_zero))
        self.ready = self.autoscaler.wanted(0, ClassDemand(0, 0), 0, START_NS)
        self.now_ns = 0

    def look(self, stable: float, panic: float | None = None, ahead: float = 0.0, ready: int | None = None) -> int:
        self.now_ns += 2 * S
        if stable or panic:
            self.autoscaler.note_traffic(self.now_ns)
        demand = ClassDemand(stable, stable if panic is None else panic, ahead)
        self.ready = self.autoscaler.wanted(self.now_ns, demand, self.ready if ready is None else ready, START_NS)
        return self.ready


def test_partitions_are_busy_for_their_target_of_the_time() -> None:
    assert Rule().look(0.7) == 1
    assert Rule().look(0.71) == 2
    assert Rule().look(1.4) == 2


def test_the_bounds_hold() -> None:
    assert Rule(least=2).look(0.0) == 2
    assert Rule(most=3).look(50.0) == 3


def test_the_forecast_counts_as_the_stable_window_does() -> None:
    assert Rule().look(0.6, 0.6, ahead=2.0) == 3


def test_panic_begins_at_twice_what_partitions_can_take_at_their_target() -> None:
    rule = Rule()
    rule.look(0.2, 1.39)
    assert not rule.autoscaler.is_panicking
    assert rule.look(0.2, 1.4, ready=1) == 2
    assert rule.autoscaler.is_panicking


def test_in_panic_the_panic_window_counts() -> None:
    assert Rule().look(0.9, 7.0) == 10


def test_panic_is_measured_by_the_partitions_that_are_up() -> None:
    rule = Rule()
    rule.look(2.0, 2.7, ready=2)
    assert not rule.autoscaler.is_panicking
    assert rule.look(2.0, 2.8, ready=1) == 4


def test_a_class_at_zero_panics_as_one_with_one_partition() -> None:
    rule = Rule(0, to_zero=True)
    assert rule.look(0.1, 1.3, ready=0) == 1
    assert rule.look(0.1, 1.4, ready=0) == 2


def test_nothing_goes_down_in_panic_which_ends_after_a_stable_window_without() -> None:
    rule = Rule()
    assert rule.look(0.9, 7.0) == 10
    for _ in range(29):
        assert rule.look(0.1) == 10
        assert rule.autoscaler.is_panicking
    # The 60 s are over, but a start takes 10 s: for so long the partitions stay beyond their last use.
    assert [rule.look(0.1) for _ in range(5)] == [10, 10, 10, 10, 1]
    assert not rule.autoscaler.is_panicking


def test_further_panic_prolongs_it() -> None:
    rule = Rule()
    rule.look(0.9, 7.0)
    for _ in range(10):
        rule.look(0.1)
    assert rule.look(0.9, 15.0) == 20
    for _ in range(29):
        assert rule.look(0.1) == 20


def test_a_partition_goes_once_no_look_wanted_it_for_as_long_as_a_start_takes() -> None:
    rule = Rule()
    assert rule.look(2.0, 1.0) == 3
    assert [rule.look(1.0) for _ in range(5)] == [3, 3, 3, 3, 2]
    assert rule.look(2.0) == 3


def test_a_class_goes_to_zero_after_30_s_without_traffic() -> None:
    rule = Rule(0, to_zero=True)
    assert rule.look(0.5) == 1
    # Its mean over 60 s is not zero yet.
    assert [quiet(rule) for _ in range(15)] == [1] * 14 + [0]


def quiet(rule: Rule) -> int:
    """A look 2 s later, without traffic since the last one."""
    rule.now_ns += 2 * S
    rule.ready = rule.autoscaler.wanted(rule.now_ns, ClassDemand(0.2, 0.0), rule.ready, START_NS)
    return rule.ready


def test_a_class_that_may_not_go_to_zero_keeps_its_least() -> None:
    rule = Rule(2)
    rule.look(0.5)
    assert {quiet(rule) for _ in range(100)} == {2}


def test_a_class_does_not_go_to_zero_in_panic() -> None:
    rule = Rule(0, to_zero=True)
    assert rule.look(0.9, 7.0) == 10
    assert [quiet(rule) for _ in range(31)] == [10] * 29 + [0, 0]


def test_a_class_is_settled_once_its_windows_are_empty() -> None:
    rule = Rule()
    assert rule.autoscaler.is_settled(0)
    rule.look(0.5)
    assert not rule.autoscaler.is_settled(rule.now_ns + 59 * S)
    assert rule.autoscaler.is_settled(rule.now_ns + 60 * S)
