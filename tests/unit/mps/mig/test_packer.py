import pytest

from sluice.models.errors import InfeasibleLayout
from sluice.mps.mig.geometry import GEOMETRIES, Geometry
from sluice.mps.mig.packer import WantedInstance, pack
from sluice.mps.mig.placements import largest_first, parse_placement

H100 = GEOMETRIES["H100-80"]


def wanted(geometry: Geometry, text: str) -> list[WantedInstance]:
    found = []
    for each in text.split():
        name, _, start = each.partition("@")
        found.append(WantedInstance(geometry.find(name), int(start) if start else None))
    return found


def packed(text: str, present: str = "", in_use: str = "", gpu: str = "H100-80") -> str:
    geometry = GEOMETRIES[gpu]
    layout = pack(
        geometry,
        wanted(geometry, text),
        [parse_placement(geometry, each) for each in present.split()],
        [parse_placement(geometry, each) for each in in_use.split()],
    )
    return " ".join(f"{each.profile.name.partition('.')[0]}@{each.start}" for each in largest_first(layout))


@pytest.mark.parametrize(
    ("profiles", "places"),
    [
        ("", ""),
        ("7g", "7g@0"),
        ("1g 1g 2g 3g", "3g@4 2g@0 1g@2 1g@3"),
        ("3g 3g", "3g@0 3g@4"),
        ("4g 3g", "4g@0 3g@4"),
        ("1g 2g 4g", "4g@0 2g@4 1g@6"),
        ("1g 1g 1g 1g 1g 1g 1g", "1g@0 1g@1 1g@2 1g@3 1g@4 1g@5 1g@6"),
        ("2g 2g 2g 1g", "2g@0 2g@2 2g@4 1g@6"),
        ("1g 1g 1g 1g 3g", "3g@4 1g@0 1g@1 1g@2 1g@3"),
    ],
)
def test_every_instance_gets_a_place_the_largest_first(profiles: str, places: str) -> None:
    assert packed(profiles) == places


@pytest.mark.parametrize(
    ("profiles", "places"),
    [
        ("3g", "3g@4"),  # leaves the only place of a 4g
        ("1g", "1g@6"),  # and of a 4g with a 2g
        ("2g", "2g@4"),
        ("1g 1g", "1g@4 1g@5"),  # leaves the double memory at 6
    ],
)
def test_what_is_left_is_in_large_pieces(profiles: str, places: str) -> None:
    assert packed(profiles) == places


def test_what_is_present_stays() -> None:
    assert packed("3g 3g", present="3g@0 2g@4") == "3g@0 3g@4"
    assert packed("3g", present="3g@0 2g@4") == "3g@0"
    assert packed("2g 1g", present="2g@2 1g@0") == "2g@2 1g@0"


def test_of_two_that_cannot_both_stay_the_one_in_use_does() -> None:
    assert packed("3g", present="3g@0 3g@4") == "3g@4"
    assert packed("3g", present="3g@0 3g@4", in_use="3g@0") == "3g@0"


def test_what_is_in_use_stays_where_there_is_a_way_to() -> None:
    assert packed("4g 1g", present="4g@0 1g@6", in_use="1g@6") == "4g@0 1g@6"
    assert packed("3g 2g 1g", present="3g@4 1g@0", in_use="1g@0") == "3g@4 2g@2 1g@0"
    assert packed("4g 2g", present="2g@0 2g@4", in_use="2g@0 2g@4") == "4g@0 2g@4"


def test_fixed_starts_are_kept() -> None:
    assert packed("3g@0 1g 2g") == "3g@0 2g@4 1g@6"
    assert packed("1g@0 1g", present="1g@3") == "1g@0 1g@3"


@pytest.mark.parametrize(
    ("profiles", "refusal"),
    [
        (
            "3g 3g 3g",
            "3 x 3g.40gb does not fit on H100-80: they take 9 compute slices of 7 and 12 memory slices of 8; "
            "2 x 3g.40gb would fit",
        ),
        (
            "3g 3g 1g",
            "2 x 3g.40gb, 1g.10gb does not fit on H100-80: they take 9 memory slices of 8; 2 x 3g.40gb would fit",
        ),
        (
            "4g 4g",
            "2 x 4g.40gb does not fit on H100-80: they take 8 compute slices of 7; 4g.40gb would fit",
        ),
        (
            "1g+me 1g+me",
            "2 x 1g.10gb+me does not fit on H100-80: only one instance can have the media engines (+me); "
            "1g.10gb+me would fit",
        ),
        (
            "3g@0 2g@2",
            "3g.40gb@0, 2g.20gb@2 does not fit on H100-80: 3g.40gb@0 and 2g.20gb@2 overlap; 3g.40gb@0 would fit",
        ),
        (
            "1g@6 1g@6",
            "2 x 1g.10gb@6 does not fit on H100-80: 1g.10gb@6 is given twice; 1g.10gb@6 would fit",
        ),
        (
            "1g@1 4g 1g@4",
            "1g.10gb@1, 4g.40gb, 1g.10gb@4 does not fit on H100-80: it has the slices, but no placements without "
            "overlap (1g.10gb starts at 0, 1, 2, 3, 4, 5 or 6, 4g.40gb starts at 0); 4g.40gb, 1g.10gb@4 would fit",
        ),
    ],
)
def test_a_demand_that_does_not_fit_is_reported_with_the_reason_and_one_that_would(profiles: str, refusal: str) -> None:
    with pytest.raises(InfeasibleLayout) as refused:
        pack(H100, wanted(H100, profiles))
    assert str(refused.value) == refusal


def test_thousands_are_refused_as_well() -> None:
    with pytest.raises(InfeasibleLayout, match=r"1000 x 1g\.10gb does not fit .*; 7 x 1g\.10gb would fit"):
        pack(H100, [WantedInstance(H100.find("1g"))] * 1000)
