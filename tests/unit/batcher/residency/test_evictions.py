"""Which models make room for another one."""

from sluice.batcher.residency.partition_memory import Resident, choose_victims

OLD, NEWER, NEWEST = Resident(0, 10, "old", 5), Resident(0, 20, "newer", 5), Resident(0, 30, "newest", 10)
ALL = [OLD, NEWER, NEWEST]


def any_model(key: str) -> bool:
    return True


def test_what_ran_the_longest_ago_goes_first() -> None:
    assert choose_victims(ALL, 5, 0, any_model) == ("old",)
    assert choose_victims(ALL, 6, 0, any_model) == ("old", "newer")


def test_no_more_goes_than_has_to() -> None:
    # The newest has to go in any case, and leaves room for one of the others.
    assert choose_victims(ALL, 11, 0, any_model) == ("old", "newest")
    assert choose_victims([OLD, Resident(0, 20, "large", 20)], 20, 0, any_model) == ("large",)


def test_what_may_not_go_stays() -> None:
    assert choose_victims(ALL, 5, 0, lambda key: key != "old") == ("newer",)
    assert choose_victims(ALL, 15, 0, lambda key: key != "old") == ("newer", "newest")
    assert choose_victims(ALL, 16, 0, lambda key: key != "old") is None


def test_the_less_important_goes_first_and_nothing_for_what_is_less_important() -> None:
    important = Resident(2, 0, "important", 5)
    assert choose_victims([NEWER, important], 5, 2, any_model) == ("newer",)
    assert choose_victims([NEWER, important], 10, 2, any_model) == ("newer", "important")
    assert choose_victims([NEWER, important], 10, 1, any_model) is None
