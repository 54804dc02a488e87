from itertools import product

from hypothesis import example, given
from hypothesis import strategies as st

from sluice.batcher.interface.config import PartitionConfig
from sluice.batcher.residency.placement import ModelNeed, place_models

KINDS = ("slow", "fast")
NEEDS = st.builds(
    ModelNeed,
    st.integers(1, 12),
    st.dictionaries(st.sampled_from(KINDS), st.floats(0, 4, allow_subnormal=False)),
    st.integers(1, 5),
)
MODELS = st.lists(NEEDS, min_size=1, max_size=6).map(lambda needs: {f"m{n}:1": need for n, need in enumerate(needs)})


def partitions_of(rooms: list[tuple[int, str]]) -> list[PartitionConfig]:
    return [PartitionConfig(f"p{n}", kind, memory_bytes=memory) for n, (memory, kind) in enumerate(rooms)]


BOUNDED = st.lists(st.tuples(st.integers(1, 20), st.sampled_from(KINDS)), min_size=1, max_size=4).map(partitions_of)
ANY = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(KINDS)), max_size=4).map(partitions_of)


def fits(models: dict[str, ModelNeed], partitions: list[PartitionConfig]) -> bool:
    """True when some placement holds each model once; tries all."""
    for hosts in product(range(len(partitions)), repeat=len(models)):
        used = [0] * len(partitions)
        for need, host in zip(models.values(), hosts, strict=True):
            used[host] += need.memory_bytes
        if all(bytes_ <= partition.memory_bytes for bytes_, partition in zip(used, partitions, strict=True)):
            return True
    return False


@given(
    MODELS, ANY, st.dictionaries(st.sampled_from(["p0", "p1", "gone"]), st.frozensets(st.sampled_from(["m0:1", "x"])))
)
def test_memory_is_never_exceeded_and_none_is_left_that_a_model_fits_in(
    models: dict[str, ModelNeed], partitions: list[PartitionConfig], present: dict[str, frozenset[str]]
) -> None:
    residency, unplaced = place_models(models, partitions, present)
    assert list(residency) == [partition.name for partition in partitions]
    held = {key for keys in residency.values() for key in keys}
    assert held.isdisjoint(unplaced)
    assert held | set(unplaced) == models.keys()
    for partition in partitions:
        keys = residency[partition.name]
        free = partition.memory_bytes - sum(models[key].memory_bytes for key in keys)
        if partition.memory_bytes:
            assert free >= 0
            assert all(models[key].memory_bytes > free for key in models if key not in keys)
        else:
            assert keys == tuple(sorted(models))


@given(MODELS, BOUNDED)
def test_every_model_is_placed_when_there_is_a_way_to(
    models: dict[str, ModelNeed], partitions: list[PartitionConfig]
) -> None:
    assert (place_models(models, partitions).unplaced == ()) == fits(models, partitions)


@given(MODELS, ANY)
@example(
    {
        "a:1": ModelNeed(1, pinned=True),
        "b:1": ModelNeed(3),
        "c:1": ModelNeed(3, pinned=True),
        "d:1": ModelNeed(4, pinned=True),
    },
    partitions_of([(3, "slow"), (4, "slow")]),
)
def test_a_placement_stays_as_long_as_nothing_changes(
    models: dict[str, ModelNeed], partitions: list[PartitionConfig]
) -> None:
    placement = place_models(models, partitions)
    assert place_models(models, partitions, placement.residency) == placement
