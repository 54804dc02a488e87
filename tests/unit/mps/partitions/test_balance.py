"""Cores, and shares of a GPU, that are lent to the partition that needs them."""

from typing import Any

import pytest

from sluice.mps.partitions.balance import BalanceSettings, CoreBalance, LoadChange, PartitionLoad, ShareBalance

OWN = {"a": (0,), "b": (1,)}


Cores = tuple[int, ...]


def looks(
    balance: CoreBalance, begin_s: float, free: list[int], **loads: PartitionLoad[Cores]
) -> list[LoadChange[Cores] | None]:
    """The decisions of three looks, 5 s apart."""
    return [balance.next_change(begin_s + 5 * number, loads, tuple(free)) for number in range(3)]


def test_the_busiest_partition_gets_a_free_core_once_it_has_been_so_for_three_looks() -> None:
    balance = CoreBalance(BalanceSettings(), OWN)
    assert looks(balance, 0, [2, 3], a=PartitionLoad((0,), 0.9), b=PartitionLoad((1,), 0.95)) == [
        None,
        None,
        LoadChange("b", (1, 2)),
    ]


def test_one_that_is_busy_now_and_then_gets_none() -> None:
    balance = CoreBalance(BalanceSettings(), OWN)
    for number in range(12):
        busy = 0.5 if number % 3 == 2 else 1.0
        assert balance.next_change(5.0 * number, {"a": PartitionLoad((0,), busy)}, (2,)) is None


def test_without_a_free_core_nothing_is_taken_from_others() -> None:
    balance = CoreBalance(BalanceSettings(), OWN)
    assert looks(balance, 0, [], a=PartitionLoad((0,), 1.0), b=PartitionLoad((1,), 0.0)) == [None, None, None]


def test_changes_keep_their_distance() -> None:
    balance = CoreBalance(BalanceSettings(), OWN)
    assert looks(balance, 0, [2], a=PartitionLoad((0,), 1.0))[2] == LoadChange("a", (0, 2))
    grown = PartitionLoad((0, 2), 1.0)
    decided = {at_s: balance.next_change(at_s, {"a": grown}, (3,)) for at_s in (15.0, 20.0, 25.0, 30.0, 35.0, 40.0)}
    assert {at_s: change for at_s, change in decided.items() if change} == {40.0: LoadChange("a", (0, 2, 3))}


def test_a_change_by_others_is_one_to_keep_a_distance_from() -> None:
    balance = CoreBalance(BalanceSettings(pause_s=10), OWN)
    assert looks(balance, 0, [], a=PartitionLoad((0,), 0.1)) == [None, None, None]
    balance.note_change(15)
    assert looks(balance, 20, [], a=PartitionLoad((0, 2), 0.1)) == [None, None, LoadChange("a", (0,))]


def test_what_was_lent_is_given_back_when_it_is_not_needed_but_nothing_more() -> None:
    balance = CoreBalance(BalanceSettings(pause_s=0), OWN)
    assert looks(balance, 0, [], a=PartitionLoad((0, 2, 3), 0.2), b=PartitionLoad((1,), 0.1))[2] == LoadChange(
        "a", (0, 2)
    )
    assert looks(balance, 15, [3], a=PartitionLoad((0, 2), 0.3), b=PartitionLoad((1,), 0.1))[2] == LoadChange("a", (0,))
    assert looks(balance, 30, [2, 3], a=PartitionLoad((0,), 0.0), b=PartitionLoad((1,), 0.0)) == [None, None, None]


def test_one_that_gave_a_core_back_is_not_busy_enough_to_get_it_again() -> None:
    settings = BalanceSettings(busy=0.8, idle=0.39)
    balance = CoreBalance(BalanceSettings(pause_s=0), OWN)
    assert 2 * settings.idle < settings.busy
    assert looks(balance, 0, [2], a=PartitionLoad((0,), 2 * 0.3)) == [None, None, None]


def share_after(own: int, held: int, busy: float, free: int) -> int:
    """The share of a GPU after three looks."""
    balance = ShareBalance(BalanceSettings(pause_s=0), {"a": own})
    changes = [balance.next_change(5.0 * number, {"a": PartitionLoad(held, busy)}, free) for number in range(3)]
    assert changes[:2] == [None, None]
    return held if changes[2] is None else changes[2].held


def test_a_busy_share_is_lent_ten_percent_or_what_there_is() -> None:
    assert share_after(own=25, held=25, busy=0.9, free=60) == 35
    assert share_after(own=25, held=25, busy=0.9, free=4) == 29
    assert share_after(own=25, held=25, busy=0.9, free=0) == 25
    assert share_after(own=25, held=25, busy=0.7, free=60) == 25


def test_a_share_gives_back_what_it_was_lent_and_never_more_than_half() -> None:
    assert share_after(own=25, held=55, busy=0.1, free=0) == 45
    assert share_after(own=25, held=29, busy=0.1, free=0) == 25
    assert share_after(own=5, held=15, busy=0.3, free=0) == 8  # then busy for 0.56 of its time, not for 0.9
    assert share_after(own=25, held=25, busy=0.0, free=0) == 25
    assert share_after(own=25, held=20, busy=0.0, free=0) == 20


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"busy": 0.8, "idle": 0.4}, "expected idle above 0 and below half of busy"),
        ({"busy": 1.2}, "and busy of at most 1, got 0.3 and 1.2"),
        ({"idle": 0.0}, "expected idle above 0"),
        ({"every_s": 0.0}, "expected a finite every_s above 0"),
        ({"pause_s": float("inf")}, "a finite pause_s of at least 0"),
    ],
)
def test_settings_that_would_go_to_and_fro_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        BalanceSettings(**settings)
