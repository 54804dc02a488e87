from hypothesis import given
from hypothesis import strategies as st

from sluice.gateway.cluster.ray.leases import Lease, Leases

EXPIRY_S = 2.5


def table(slots: int) -> Leases:
    """A table that has learned of all leases that there were, none."""
    return Leases(slots, EXPIRY_S, 100, -EXPIRY_S)


def test_one_gateway_gets_what_it_wants_and_keeps_it() -> None:
    leases = table(3)
    assert leases.renew("a", 3, {}, 0.0) == {0: 100, 1: 101, 2: 102}
    assert leases.renew("a", 3, {0: 100, 1: 101, 2: 102}, 0.5) == {0: 100, 1: 101, 2: 102}
    assert leases.renew("a", 2, {0: 100, 1: 101, 2: 102}, 1.0) == {0: 100, 1: 101}
    assert leases.idle_s(2, 4.0) == 3.0


def test_a_slot_that_the_gateway_names_no_more_is_free_and_another_is_granted() -> None:
    leases = table(3)
    leases.renew("a", 2, {}, 0.0)
    assert leases.renew("a", 1, {1: 101}, 0.5) == {1: 101}


def test_two_gateways_share_evenly() -> None:
    leases = table(4)
    first = leases.renew("a", 4, {}, 0.0)
    assert leases.renew("b", 4, {}, 0.1) == {}  # a has all
    first = leases.renew("a", 4, first, 0.5)
    assert sorted(first) == [0, 1]
    second = leases.renew("b", 4, {}, 0.6)
    assert second == {2: 104, 3: 105}
    assert leases.renew("a", 4, first, 1.0) == first
    assert leases.wanted() == 4


def test_what_cannot_be_shared_evenly_stays_where_it_is() -> None:
    leases = table(3)
    first = leases.renew("a", 3, {}, 0.0)
    leases.renew("b", 3, {}, 0.1)
    first = leases.renew("a", 3, first, 0.5)
    assert sorted(first) == [0, 1]
    second = leases.renew("b", 3, {}, 0.6)
    assert sorted(second) == [2]
    assert leases.renew("a", 3, first, 1.0) == first
    assert leases.renew("b", 3, second, 1.1) == second


def test_what_one_gateway_does_not_want_is_for_the_other() -> None:
    leases = table(4)
    leases.renew("a", 1, {}, 0.0)
    assert sorted(leases.renew("b", 4, {}, 0.1)) == [1, 2, 3]


def test_the_leases_of_a_dead_gateway_go_to_the_other() -> None:
    leases = table(2)
    leases.renew("a", 2, {}, 0.0)
    assert leases.renew("b", 2, {}, EXPIRY_S) == {}
    assert leases.renew("b", 2, {}, EXPIRY_S + 0.1) == {0: 102, 1: 103}
    # a was only paused; what it had is another's by now.
    assert leases.renew("a", 2, {0: 100, 1: 101}, EXPIRY_S + 0.2) == {}


def test_a_gateway_that_leaves_frees_its_slots_at_once() -> None:
    leases = table(1)
    leases.renew("a", 1, {}, 0.0)
    leases.leave("a", 0.1)
    assert leases.renew("b", 1, {}, 0.2) == {0: 101}


def test_a_new_table_learns_the_leases_before_it_grants_any() -> None:
    leases = Leases(2, EXPIRY_S, 50, 10.0)
    assert leases.renew("b", 2, {}, 10.1) == {}
    assert leases.renew("a", 2, {1: 70}, 10.2) == {1: 70}
    assert leases.renew("b", 2, {}, 10.0 + EXPIRY_S) == {0: 71}
    assert leases.leases == {0: Lease("b", 71), 1: Lease("a", 70)}


def test_a_new_table_gives_a_slot_to_the_first_that_claims_it() -> None:
    leases = Leases(1, EXPIRY_S, 50, 10.0)
    assert leases.renew("a", 1, {0: 7}, 10.1) == {0: 7}
    assert leases.renew("b", 1, {0: 6}, 10.2) == {}


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.floats(0, 2), st.booleans()), max_size=60))
def test_no_slot_has_two_gateways_and_shares_are_fair_in_the_end(steps: list[tuple[str, int, float, bool]]) -> None:
    leases, now_s = table(5), 0.0
    held: dict[str, dict[int, int]] = {name: {} for name in "abc"}
    epochs: dict[int, int] = {}
    for name, want, pause_s, leaves in steps:
        now_s += pause_s
        if leaves:
            leases.leave(name, now_s)
            held[name] = {}
            continue
        before = held[name]
        held[name] = leases.renew(name, want, before, now_s)
        for slot, epoch in held[name].items():
            assert leases.leases[slot] == Lease(name, epoch)
            assert epoch >= epochs.get(slot, 0)
            epochs[slot] = epoch
        assert len(held[name]) <= want
    for _ in range(3):  # all three want all: nobody has less than its part
        for name in "abc":
            held[name] = leases.renew(name, 5, held[name], now_s)
    assert sorted(len(each) for each in held.values()) == [1, 2, 2]
