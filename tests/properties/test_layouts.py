from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sluice.mps.mig.demand import MigDemand, cover_demands
from sluice.mps.mig.geometry import GEOMETRIES, Geometry, MigProfile
from sluice.mps.mig.layout import CreateInstance, DestroyInstance, plan_steps
from sluice.mps.mig.packer import WantedInstance, pack
from sluice.mps.mig.placements import Layout, enumerate_layouts, layout_problem

LAYOUTS = {
    geometry.gpu: list(enumerate_layouts(geometry, {profile: len(profile.starts) for profile in geometry.profiles}))
    for geometry in (GEOMETRIES["A30"], GEOMETRIES["H100-80"])
}


@st.composite
def changes(draw: st.DrawFn) -> tuple[Geometry, Layout, Layout, Layout]:
    """A GPU, its present layout, a desired layout, and the instances in use."""
    gpu = draw(st.sampled_from(sorted(LAYOUTS)))
    present, wanted = (draw(st.sampled_from(LAYOUTS[gpu])) for _ in range(2))
    in_use = frozenset(each for each in sorted(present, key=str) if draw(st.booleans()))
    return GEOMETRIES[gpu], present, wanted, in_use


@st.composite
def served(draw: st.DrawFn) -> tuple[Geometry, Layout, dict[str, MigDemand]]:
    """A GPU, a layout, and demands that its instances could serve, one demand each."""
    gpu = draw(st.sampled_from(sorted(LAYOUTS)))
    geometry, layout = GEOMETRIES[gpu], draw(st.sampled_from(LAYOUTS[gpu]))
    rate = st.integers(1, 100)
    rates = [{profile: float(draw(rate)) for profile in geometry.profiles} for _ in range(3)]
    given_to = [0.0, 0.0, 0.0]
    for each in sorted(layout, key=str):
        to = draw(st.integers(0, 2))
        given_to[to] += rates[to][each.profile]
    demands = {f"p{n}": MigDemand(given_to[n], rates[n]) for n in range(3) if given_to[n]}
    return geometry, layout, demands


def price(profiles: list[MigProfile]) -> tuple[int, int, int]:
    return sum(each.compute for each in profiles), sum(each.memory for each in profiles), len(profiles)


@given(served())
def test_demands_are_served_at_the_least_price(
    case: tuple[Geometry, Layout, dict[str, MigDemand]],
) -> None:
    geometry, layout, demands = case
    shares = cover_demands(geometry, demands)
    assert list(shares) == list(demands)
    for name, share in shares.items():
        assert sum(demands[name].rates[profile] for profile in share) >= demands[name].rate
    profiles = [profile for share in shares.values() for profile in share]
    assert layout_problem(geometry, pack(geometry, [WantedInstance(profile) for profile in profiles])) is None
    assert price(profiles) <= price([each.profile for each in layout])


@given(changes())
def test_every_step_is_legal_and_touches_only_what_changes(change: tuple[Geometry, Layout, Layout, Layout]) -> None:
    geometry, present, wanted, in_use = change
    layout = set(present)
    found = plan_steps(geometry, present, wanted, in_use=in_use)
    for step in found:
        match step:
            case CreateInstance(placement):
                assert placement not in layout
                layout.add(placement)
            case DestroyInstance(placement):
                assert placement not in wanted
                layout.remove(placement)
        assert layout_problem(geometry, layout) is None
    assert layout == wanted
    assert len(found) == len(present ^ wanted)


@given(changes())
def test_demands_that_fit_are_packed_at_the_least_loss(change: tuple[Geometry, Layout, Layout, Layout]) -> None:
    geometry, present, other, in_use = change
    wanted = [WantedInstance(each.profile) for each in other]
    packed = pack(geometry, wanted, present, in_use)
    assert layout_problem(geometry, packed) is None
    assert Counter(each.profile for each in packed) == Counter(each.profile for each in other)

    def lost(layout: Layout) -> tuple[int, int]:
        gone = present - layout
        return sum(e.profile.compute for e in gone & in_use), sum(e.profile.compute for e in gone)

    assert lost(packed) <= lost(other)


@given(changes())
def test_a_desired_layout_that_is_present_stays_as_it_is(change: tuple[Geometry, Layout, Layout, Layout]) -> None:
    geometry, present, _, in_use = change
    assert pack(geometry, [WantedInstance(each.profile) for each in present], present, in_use) == present


@given(changes())
def test_packing_is_the_same_in_any_order(change: tuple[Geometry, Layout, Layout, Layout]) -> None:
    geometry, present, other, in_use = change
    wanted = [WantedInstance(each.profile) for each in sorted(other, key=str)]
    assert pack(geometry, wanted, present, in_use) == pack(geometry, wanted[::-1], present, in_use)
