from sluice.mps.mig.geometry import GEOMETRIES
from sluice.mps.mig.layout import difference, plan_steps
from sluice.mps.mig.placements import Layout, Placement, parse_placement

H100 = GEOMETRIES["H100-80"]


def lay(text: str) -> Layout:
    return frozenset(parse_placement(H100, each) for each in text.split())


def reported(present: str, wanted: str, in_use: str = "") -> list[str]:
    return [str(step) for step in plan_steps(H100, lay(present), lay(wanted), in_use=lay(in_use))]


def test_nothing_is_done_where_nothing_changes() -> None:
    assert reported("3g@0 3g@4", "3g@4 3g@0") == []


def test_an_empty_gpu_gets_the_largest_first() -> None:
    assert reported("", "1g@2 1g@3 2g@0 3g@4") == [
        "create 3g.40gb@4",
        "create 2g.20gb@0",
        "create 1g.10gb@2",
        "create 1g.10gb@3",
    ]


def test_from_one_whole_to_two_halves() -> None:
    assert reported("7g@0", "3g@0 3g@4") == ["destroy 7g.80gb@0", "create 3g.40gb@0", "create 3g.40gb@4"]


def test_a_half_that_stays_is_not_touched() -> None:
    assert reported("3g@0 2g@4 1g@6", "3g@0 3g@4", in_use="3g@0") == [
        "destroy 1g.10gb@6",
        "destroy 2g.20gb@4",
        "create 3g.40gb@4",
    ]


def test_what_has_a_place_is_created_before_anything_goes() -> None:
    assert reported("2g@0", "3g@4") == ["create 3g.40gb@4", "destroy 2g.20gb@0"]


def test_what_is_in_use_goes_last() -> None:
    assert reported("1g@0 1g@1 1g@2", "", in_use="1g@0 1g@1") == [
        "destroy 1g.10gb@2",
        "destroy 1g.10gb@1",
        "destroy 1g.10gb@0",
    ]


def test_one_is_cut_into_several() -> None:
    assert reported("3g@4 4g@0", "3g@4 1g@0 1g@1 2g@2") == [
        "destroy 4g.40gb@0",
        "create 2g.20gb@2",
        "create 1g.10gb@0",
        "create 1g.10gb@1",
    ]


def test_media_engines_move_by_destroying_first() -> None:
    assert reported("1g+me@0 1g@1", "1g+me@6") == ["destroy 1g.10gb+me@0", "create 1g.10gb+me@6", "destroy 1g.10gb@1"]


def test_the_mode_is_turned_on_first_and_off_last() -> None:
    on = plan_steps(H100, frozenset(), lay("7g@0"), mig=(False, True))
    assert [str(step) for step in on] == ["turn MIG mode on", "create 7g.80gb@0"]
    off = plan_steps(H100, lay("7g@0"), frozenset(), mig=(True, False))
    assert [str(step) for step in off] == ["destroy 7g.80gb@0", "turn MIG mode off"]


def test_difference() -> None:
    change = difference(lay("3g@0 2g@4"), lay("3g@0 3g@4"))
    assert (change.gone, change.new) == (lay("2g@4"), lay("3g@4"))


def test_placements_are_written_with_their_start() -> None:
    assert str(Placement(H100.find("3g"), 4)) == "3g.40gb@4"
