"""Which steps there are from one split of the cores to another, and when the one that the plan asks for is done."""

from sluice.batcher.interface.resize_data import Ask, CoreStep, Judgement, Reason
from sluice.batcher.scheduler.core_steps import StepChoice, steps
from sluice.mps.partitions.balance import BalanceSettings, LoadChange

FIRST, SECOND = CoreStep((LoadChange("a", (0, 2)),), 1), CoreStep((LoadChange("b", (1, 2)),), 1)
SHORT, FINE = Judgement(("m:1",), 1.2, 4 / 3, 2.0), Judgement((), 0.6, 1.0, 2.0)


def ask(step: CoreStep, reason: Reason = Reason.OBJECTIVE) -> Ask:
    return Ask(step, reason, SHORT, FINE)


def test_a_core_is_given_taken_back_or_moved() -> None:
    assert list(steps({"a": (0, 1), "b": (2,)}, {"a": (0,), "b": (2,)}, (3, 4))) == [
        CoreStep((LoadChange("a", (0, 1, 3)),), 1),
        CoreStep((LoadChange("b", (2, 3)),), 1),
        CoreStep((LoadChange("a", (0,)),), -1),
        CoreStep((LoadChange("a", (0,)), LoadChange("b", (1, 2))), 0),
    ]


def test_of_its_own_cores_a_partition_loses_one_to_another_only_and_never_the_last() -> None:
    assert list(steps({"a": (0, 1), "b": (2,)}, {"a": (0, 1), "b": (2,)}, ())) == [
        CoreStep((LoadChange("a", (0,)), LoadChange("b", (1, 2))), 0, free=False)
    ]
    assert list(steps({"a": (0,), "b": (2,)}, {"a": (0,), "b": (2,)}, ())) == []


def test_what_it_was_lent_goes_first() -> None:
    (taken,) = steps({"a": (0, 1, 5)}, {"a": (1, 5)}, ())
    assert taken == CoreStep((LoadChange("a", (1, 5)),), -1)


def test_the_third_time_in_a_row_it_is_done() -> None:
    choice = StepChoice(BalanceSettings())
    assert [choice.look(at_s, ask(FIRST)) for at_s in (0, 5, 10)] == [None, None, ask(FIRST)]


def test_another_step_another_reason_or_none_at_all_begins_again() -> None:
    for between in (ask(SECOND), ask(FIRST, Reason.COST), None):
        choice = StepChoice(BalanceSettings())
        asked = [ask(FIRST), ask(FIRST), between, ask(FIRST), ask(FIRST), ask(FIRST)]
        done = [choice.look(5.0 * number, each) for number, each in enumerate(asked)]
        assert done == [None, None, None, None, None, ask(FIRST)]


def test_steps_keep_their_distance_whatever_caused_the_one_before() -> None:
    choice = StepChoice(BalanceSettings(pause_s=30))
    choice.changed(0)
    done = {at_s: choice.look(at_s, ask(FIRST)) for at_s in (5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0)}
    assert {at_s for at_s, each in done.items() if each} == {30.0}
    again = {at_s: choice.look(at_s, ask(SECOND)) for at_s in (45.0, 50.0, 55.0, 60.0, 65.0)}
    assert {at_s for at_s, each in again.items() if each} == {60.0}
