import pytest

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.residency.placement import ModelNeed, ResidencyPlan, find_room, place_models

A, B = PartitionConfig("a", "cpu1", memory_bytes=100), PartitionConfig("b", "cpu1", memory_bytes=100)
FAST = PartitionConfig("fast", "gpu", price=2.0, memory_bytes=100)
OPEN = PartitionConfig("open", "cpu1")


def test_without_bounds_every_partition_holds_every_model() -> None:
    models = {"y:1": ModelNeed(1 << 40), "x:1": ModelNeed(5, {"cpu1": 3.0})}
    assert place_models(models, [OPEN, PartitionConfig("more", "gpu")]) == ResidencyPlan(
        {"open": ("x:1", "y:1"), "more": ("x:1", "y:1")}, ()
    )


def test_a_partition_holds_only_what_it_may() -> None:
    models = {"x:1": ModelNeed(60), "y:1": ModelNeed(70)}
    elsewhere = PartitionConfig("elsewhere", "triton", models=("y:1",))
    assert place_models(models, [A, elsewhere]) == ResidencyPlan({"a": ("x:1",), "elsewhere": ("y:1",)}, ())
    assert place_models(models, [elsewhere]) == ResidencyPlan({"elsewhere": ("y:1",)}, ("x:1",))


def test_models_that_do_not_fit_together_are_placed_apart() -> None:
    models = {"x:1": ModelNeed(60), "y:1": ModelNeed(70)}
    assert place_models(models, [A, B]) == ResidencyPlan({"a": ("y:1",), "b": ("x:1",)}, ())


def test_earlier_choices_are_taken_back_where_a_model_would_be_left_out() -> None:
    # Largest first, p and q would share a, and the last of four times 30 would not fit into b.
    models = {key: ModelNeed(size) for key, size in zip("pqrstu", (40, 40, 30, 30, 30, 30), strict=True)}
    assert place_models(models, [A, B]) == ResidencyPlan({"a": ("p", "r", "s"), "b": ("q", "t", "u")}, ())


def test_a_model_goes_where_its_load_costs_least() -> None:
    # 0.5 s/s at price 1 against 0.3 s/s at price 2 and 0.1 s/s at price 2.
    models = {"x:1": ModelNeed(60, {"cpu1": 0.5, "gpu": 0.3}), "y:1": ModelNeed(60, {"cpu1": 0.5, "gpu": 0.1})}
    assert place_models(models, [A, FAST]) == ResidencyPlan({"a": ("x:1",), "fast": ("y:1",)}, ())


@pytest.mark.parametrize(
    ("hot", "residency"),
    [
        (4.0, {"a": ("hot:1",), "b": ("warm:1",), "c": ("hot:1",), "d": ("hot:1",)}),  # 2.0 a host against 1.0
        (1.5, {"a": ("hot:1",), "b": ("warm:1",), "c": ("hot:1",), "d": ("warm:1",)}),  # 0.75 a host against 1.0
    ],
)
def test_replicas_go_where_most_load_is_for_each_host(hot: float, residency: dict[str, tuple[str, ...]]) -> None:
    models = {"hot:1": ModelNeed(50, {"cpu1": hot}), "warm:1": ModelNeed(50, {"cpu1": 1.0})}
    rooms = [PartitionConfig(name, "cpu1", memory_bytes=99) for name in "abcd"]
    assert place_models(models, rooms) == ResidencyPlan(residency, ())


def test_the_replicas_that_a_model_asks_for_come_before_those_of_a_busier_one() -> None:
    rooms = [PartitionConfig(name, "cpu1", memory_bytes=99) for name in "abcd"]
    models = {"hot:1": ModelNeed(50, {"cpu1": 9.0}), "many:1": ModelNeed(50, {"cpu1": 1.0}, replicas=3)}
    assert place_models(models, rooms) == ResidencyPlan(
        {"a": ("hot:1",), "b": ("many:1",), "c": ("many:1",), "d": ("many:1",)}, ()
    )


def test_more_replicas_than_there_is_room_for_are_as_many_as_there_is() -> None:
    models = {"x:1": ModelNeed(60, replicas=1 << 30), "y:1": ModelNeed(70)}
    assert place_models(models, [A, B]) == ResidencyPlan({"a": ("y:1",), "b": ("x:1",)}, ())
    assert place_models({"x:1": models["x:1"]}, [A, B]) == ResidencyPlan({"a": ("x:1",), "b": ("x:1",)}, ())


def test_what_has_no_room_is_reported_and_the_busy_ones_come_first() -> None:
    models = {
        "huge:1": ModelNeed(101),
        "idle:1": ModelNeed(60),
        "quiet:1": ModelNeed(90, {"cpu1": 0.1}),
        "busy:1": ModelNeed(80, {"cpu1": 2.0}),
    }
    assert place_models(models, [A, B]) == ResidencyPlan({"a": ("busy:1",), "b": ("quiet:1",)}, ("huge:1", "idle:1"))
    assert place_models(models, []) == ResidencyPlan({}, ("busy:1", "huge:1", "idle:1", "quiet:1"))


def test_pinned_models_come_first_where_there_is_no_room_for_all_and_leave_room_for_the_largest() -> None:
    rooms = [PartitionConfig(name, "cpu1", memory_bytes=size) for name, size in (("a", 90), ("b", 60), ("c", 30))]
    rest = {"big:1": ModelNeed(77, {"cpu1": 3.0}), "mid:1": ModelNeed(50, {"cpu1": 2.0}), "low:1": ModelNeed(40)}
    models = {"pin:1": ModelNeed(27, {"cpu1": 0.0}, pinned=True), "tall:1": ModelNeed(40, pinned=True), **rest}
    assert place_models(models, rooms) == ResidencyPlan(
        {"a": ("big:1",), "b": ("tall:1",), "c": ("pin:1",)}, ("low:1", "mid:1")
    )
    # Where it is held by now makes no difference, nor does what is asked for more.
    held = {"a": ["pin:1"], "b": ["tall:1"], "c": []}
    assert place_models(models, rooms, held).residency["c"] == ("pin:1",)
    assert place_models(models, rooms[1:]) == ResidencyPlan(
        {"b": ("tall:1",), "c": ("pin:1",)}, ("big:1", "low:1", "mid:1")
    )


def test_of_pinned_models_that_have_no_room_together_those_that_are_held_stay() -> None:
    models = {
        "busy:1": ModelNeed(60, {"cpu1": 9.0}, pinned=True),
        "held:1": ModelNeed(60, pinned=True),
        "other:1": ModelNeed(50, {"cpu1": 20.0}),
    }
    assert place_models(models, [A], {"a": ["held:1"]}) == ResidencyPlan({"a": ("held:1",)}, ("busy:1", "other:1"))


def test_a_model_moves_only_when_that_saves_a_fifth() -> None:
    rooms = [A, PartitionConfig("g", "gpu", memory_bytes=100)]
    here = {"a": ["x:1", "gone:1"], "g": ["y:1"], "lost": ["y:1"]}
    y = ModelNeed(60, {"cpu1": 1.0, "gpu": 1.0})
    near = {"x:1": ModelNeed(60, {"cpu1": 1.0, "gpu": 0.9}), "y:1": y}
    assert place_models(near, rooms).residency == {"a": ("y:1",), "g": ("x:1",)}
    assert place_models(near, rooms, here).residency == {"a": ("x:1",), "g": ("y:1",)}
    far = {"x:1": ModelNeed(60, {"cpu1": 1.0, "gpu": 0.7}), "y:1": y}
    assert place_models(far, rooms, here).residency == {"a": ("y:1",), "g": ("x:1",)}


def test_a_kind_of_which_nothing_is_known_comes_last() -> None:
    models = {"x:1": ModelNeed(60, {"gpu": 9.0}), "y:1": ModelNeed(60, {"gpu": 1.0})}
    assert place_models(models, [A, FAST]).residency == {"a": ("y:1",), "fast": ("x:1",)}


def bounded(name: str, memory_bytes: int) -> PartitionConfig:
    return PartitionConfig(name, "cpu1", memory_bytes=memory_bytes)


@pytest.mark.parametrize(
    ("memory_bytes", "held", "residency", "spare", "free_bytes"),
    [
        (0, {"a": "m", "b": "m"}, {"a": ("n",), "b": ("n",)}, {}, 0),  # without bounds, everywhere
        (10, {"a": "", "b": "m"}, {"a": ("n",)}, {}, 10),
        (10, {"a": "m", "b": "m"}, {"b": ("n",)}, {"b": ("m",)}, 4),  # a copy goes first
        (10, {"a": "m", "b": "k"}, {}, {}, 4),  # no last copy goes
        (12, {"a": "m", "b": "k"}, {"a": ("n",)}, {}, 6),
    ],
)
def test_a_model_has_the_room_that_is_left_and_that_of_spare_copies(
    memory_bytes: int,
    held: dict[str, str],
    residency: dict[str, tuple[str, ...]],
    spare: dict[str, tuple[str, ...]],
    free_bytes: int,
) -> None:
    needs = {key: ModelNeed(6) for key in {"n", *"".join(held.values())}}
    room = find_room(needs, {"n"}, [bounded("a", memory_bytes), bounded("b", memory_bytes)], held, held)
    assert (room.residency, room.spare, max(room.free_bytes, 0)) == (residency, spare, free_bytes)


def test_a_copy_on_a_partition_that_is_down_or_still_loads_is_no_copy() -> None:
    needs = {key: ModelNeed(6) for key in "mn"}
    partitions = [bounded("a", 10), bounded("b", 10)]
    room = find_room(needs, {"n"}, partitions, {"a": "m", "b": "m"}, {"a": "", "b": "m"})
    assert (room.residency, room.free_bytes) == ({}, 4)
