from collections import Counter
from collections.abc import Collection

import pytest

from sluice.models.errors import ConfigError
from sluice.mps.mig.geometry import GEOMETRIES, Geometry, MigProfile
from sluice.mps.mig.placements import (
    Layout,
    enumerate_layouts,
    free_placements,
    largest_first,
    layout_problem,
    parse_placement,
)

H100 = GEOMETRIES["H100-80"]
EIGHTS = [name for name in GEOMETRIES if name != "A30"]


def lay(*texts: str, gpu: str = "H100-80") -> Layout:
    return frozenset(parse_placement(GEOMETRIES[gpu], text) for text in texts)


def multisets(found: list[Layout]) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted(Counter(each.profile.name for each in layout).items())) for layout in found}


def maximal_layouts(geometry: Geometry, profiles: Collection[MigProfile]) -> list[Layout]:
    """Every layout of these profiles to which none of them can be added."""
    every = enumerate_layouts(geometry, {profile: len(profile.starts) for profile in profiles})
    return [
        layout for layout in every if not any(each.profile in profiles for each in free_placements(geometry, layout))
    ]


def plain(gpu: str) -> tuple[MigProfile, ...]:
    return tuple(each for each in GEOMETRIES[gpu].profiles if not each.media)


def without_double(gpu: str) -> tuple[MigProfile, ...]:
    return tuple(each for each in plain(gpu) if (each.compute, each.memory) != (1, 2))


@pytest.mark.parametrize("gpu", EIGHTS)
def test_there_are_19_full_layouts_of_14_kinds(gpu: str) -> None:
    found = maximal_layouts(GEOMETRIES[gpu], without_double(gpu))
    assert (len(found), len(set(found)), len(multisets(found))) == (19, 19, 14)


@pytest.mark.parametrize("gpu", EIGHTS)
def test_the_double_memory_makes_them_78_of_38_kinds(gpu: str) -> None:
    found = maximal_layouts(GEOMETRIES[gpu], plain(gpu))
    assert (len(found), len(set(found)), len(multisets(found))) == (78, 78, 38)


def test_an_a30_has_five_full_layouts() -> None:
    found = maximal_layouts(GEOMETRIES["A30"], plain("A30"))
    assert sorted(" ".join(str(each) for each in largest_first(layout)) for layout in found) == [
        "1g.6gb@0 1g.6gb@1 1g.6gb@2 1g.6gb@3",
        "2g.12gb@0 1g.6gb@2 1g.6gb@3",
        "2g.12gb@0 2g.12gb@2",
        "2g.12gb@2 1g.6gb@0 1g.6gb@1",
        "4g.24gb@0",
    ]


def test_the_14_kinds_of_an_a100() -> None:
    found = maximal_layouts(GEOMETRIES["A100-40"], without_double("A100-40"))
    kinds = {"".join(name[0] * count for name, count in reversed(kind)) for kind in multisets(found)}
    assert kinds == {
        *("7", "43", "421", "4111", "33", "322", "321", "3211", "3111", "31111"),
        *("2221", "22111", "211111", "1111111"),
    }


def test_every_layout_that_is_enumerated_is_legal_and_different() -> None:
    found = list(enumerate_layouts(H100, {profile: len(profile.starts) for profile in H100.profiles}))
    assert len(found) == len(set(found)) == 2319
    assert found[0] == frozenset()
    assert all(layout_problem(H100, layout) is None for layout in found)


def test_no_legal_layout_is_left_out() -> None:
    a30 = GEOMETRIES["A30"]
    places = free_placements(a30, [])
    subsets = [
        frozenset(parse_placement for index, parse_placement in enumerate(places) if chosen >> index & 1)
        for chosen in range(1 << len(places))
    ]
    legal = {layout for layout in subsets if layout_problem(a30, layout) is None}
    assert legal == set(enumerate_layouts(a30, {profile: len(profile.starts) for profile in a30.profiles}))
    assert len(legal) == 76


@pytest.mark.parametrize(
    ("placements", "reason"),
    [
        (["3g@0", "3g@4"], None),
        (["4g@0", "2g@4", "1g@6"], None),
        (["1g@0", "1g@1", "1g@2", "1g@3", "1g@4", "1g@5", "1g@6"], None),
        (["3g@0", "2g@2"], "3g.40gb@0 and 2g.20gb@2 overlap"),
        (["7g@0", "1g@6"], "7g.80gb@0 and 1g.10gb@6 overlap"),
        (["1g.20gb@0", "1g@1"], "1g.20gb@0 and 1g.10gb@1 overlap"),
        (["1g+me@0", "1g+me@1"], r"only one instance can have the media engines \(\+me\)"),
    ],
)
def test_what_can_lie_together(placements: list[str], reason: str | None) -> None:
    found = layout_problem(H100, lay(*placements))
    assert found == (reason.replace("\\", "") if reason else None)


def test_instances_of_another_gpu_have_no_place() -> None:
    assert layout_problem(H100, lay("3g.20gb@4", gpu="A100-40")) == "3g.20gb@4 is not a placement of H100-80"


@pytest.mark.parametrize("written", ["3g@2", "3g", "3g@", "3g@x", "3g@-4"])
def test_a_place_is_written_with_a_start_that_there_is(written: str) -> None:
    with pytest.raises(ConfigError, match=f"'{written}': expected 3g.40gb@START, where START is one of 0, 4"):
        parse_placement(H100, written)


def test_room_is_what_could_be_added() -> None:
    assert [str(each) for each in free_placements(H100, lay("4g@0", "2g@4"))] == [
        "1g.20gb@6",
        "1g.10gb@6",
        "1g.10gb+me@6",
    ]
    assert free_placements(H100, lay("3g@0", "3g@4")) == []
    assert [str(each) for each in free_placements(H100, lay("3g@4", "2g@0", "1g+me@3"))] == ["1g.10gb@2"]
