"""The number of partitions of a class: within its bounds, never down in panic, and never lower for more demand."""

from hypothesis import example, given
from hypothesis import strategies as st

from sluice.batcher.interface.scaling_config import ScaledClass, ScalingConfig
from sluice.batcher.scaling.autoscaler import Autoscaler, ClassDemand
from tests.support.scheduling.builders import S

LOADS = st.floats(0, 30, allow_nan=False)
LOOKS = st.lists(st.tuples(st.integers(1, 20), LOADS, LOADS, LOADS, st.integers(0, 12), st.booleans()), max_size=60)
CLASSES = st.builds(
    lambda least, more, to_zero: ScaledClass("c", ("c-0",), 0 if to_zero else least, least + more, to_zero),
    st.integers(1, 5),
    st.integers(0, 10),
    st.booleans(),
)
Look = tuple[int, float, float, float, int, bool]


def numbers(scaled: ScaledClass, looks: list[Look], more: float = 0.0) -> list[tuple[int, bool]]:
    """The number at each look, and whether there is panic; `more` is added to each demand."""
    autoscaler = Autoscaler(ScalingConfig(), scaled)
    now_ns, found = 0, []
    for after_s, stable, panic, ahead, ready, traffic in looks:
        now_ns += after_s * S
        if traffic:
            autoscaler.note_traffic(now_ns)
        demand = ClassDemand(stable + more, panic + more, ahead + more)
        wanted = autoscaler.wanted(now_ns, demand, ready, 10 * S)
        found.append((wanted, autoscaler.is_panicking))
    return found


@given(CLASSES, LOOKS)
def test_the_bounds_hold(scaled: ScaledClass, looks: list[Look]) -> None:
    for wanted, _ in numbers(scaled, looks):
        assert (0 if scaled.to_zero else scaled.least) <= wanted <= scaled.most


@given(CLASSES, LOOKS)
def test_nothing_goes_down_in_panic(scaled: ScaledClass, looks: list[Look]) -> None:
    before = 0
    for wanted, panics in numbers(scaled, looks):
        assert wanted >= before or not panics
        before = wanted


@given(CLASSES, LOOKS, st.floats(0, 10))
@example(ScaledClass("c", ("c-0",), 1, 4, to_zero=False), [(1, 0, 0, 0, 0, False), (1, 0, 0, 3, 0, False)], 2)
def test_more_demand_never_wants_fewer(scaled: ScaledClass, looks: list[Look], more: float) -> None:
    few, many = numbers(scaled, looks), numbers(scaled, looks, more)
    assert all(less[0] <= greater[0] for less, greater in zip(few, many, strict=True))


@given(CLASSES, LOOKS)
def test_the_demand_of_the_stable_window_is_met(scaled: ScaledClass, looks: list[Look]) -> None:
    for (wanted, _), (_, stable, _, _, _, traffic) in zip(numbers(scaled, looks), looks, strict=True):
        if traffic:
            assert wanted >= min(stable / scaled.target - 1e-6, scaled.most)
