import pytest

from sluice.models.errors import ConfigError
from sluice.mps.mig.geometry import GEOMETRIES, MigProfile, find_geometry, geometry_of, share_of_gpu


def test_the_gpus_that_are_known() -> None:
    assert list(GEOMETRIES) == ["A30", "A100-40", "A100-80", "H100-80", "H100-94", "H100-96", "H200", "B200"]


@pytest.mark.parametrize(
    ("gpu", "names"),
    [
        ("A30", "4g.24gb 2g.12gb+me 2g.12gb 1g.6gb+me 1g.6gb"),
        ("A100-40", "7g.40gb 4g.20gb 3g.20gb 2g.10gb 1g.10gb 1g.5gb+me 1g.5gb"),
        ("A100-80", "7g.80gb 4g.40gb 3g.40gb 2g.20gb 1g.20gb 1g.10gb+me 1g.10gb"),
        ("H100-80", "7g.80gb 4g.40gb 3g.40gb 2g.20gb 1g.20gb 1g.10gb+me 1g.10gb"),
        ("H100-94", "7g.94gb 4g.47gb 3g.47gb 2g.24gb 1g.24gb 1g.12gb+me 1g.12gb"),
        ("H100-96", "7g.96gb 4g.48gb 3g.48gb 2g.24gb 1g.24gb 1g.12gb+me 1g.12gb"),
        ("H200", "7g.141gb 4g.71gb 3g.71gb 2g.35gb 1g.35gb 1g.18gb+me 1g.18gb"),
        ("B200", "7g.180gb 4g.90gb 3g.90gb 2g.45gb 1g.45gb 1g.23gb+me 1g.23gb"),
    ],
)
def test_profiles_by_gpu(gpu: str, names: str) -> None:
    assert {profile.name for profile in GEOMETRIES[gpu].profiles} == set(names.split())


def test_an_h100_as_its_driver_lists_it() -> None:
    geometry = find_geometry("h100-80")
    assert (geometry.compute, geometry.memory) == (7, 8)
    by_name = {profile.name: profile for profile in geometry.profiles}
    assert by_name["1g.10gb"] == MigProfile("1g.10gb", 19, 1, 1, (0, 1, 2, 3, 4, 5, 6), 16, 9984)
    assert by_name["1g.20gb"] == MigProfile("1g.20gb", 15, 1, 2, (0, 2, 4, 6), 26, 20096)
    assert by_name["2g.20gb"] == MigProfile("2g.20gb", 14, 2, 2, (0, 2, 4), 32, 20096)
    assert by_name["3g.40gb"] == MigProfile("3g.40gb", 9, 3, 4, (0, 4), 60, 40448)
    assert by_name["4g.40gb"] == MigProfile("4g.40gb", 5, 4, 4, (0,), 64, 40448)
    assert by_name["7g.80gb"] == MigProfile("7g.80gb", 0, 7, 8, (0,), 132, 81152)
    assert by_name["1g.10gb+me"].id == 20


@pytest.mark.parametrize(
    ("gpu", "figures"),
    [
        (
            "A30",
            {"1g.6gb": (14, 1, 14, 5836), "1g.6gb+me": (21, 1, 14, 5836), "2g.12gb": (5, 2, 28, 11672)}
            | {"2g.12gb+me": (6, 2, 28, 11672), "4g.24gb": (0, 4, 56, 23344)},
        ),
        (
            "A100-40",
            {"1g.5gb": (19, 1, 14, 4864), "1g.5gb+me": (20, 1, 14, 4864), "1g.10gb": (15, 2, 14, 9856)}
            | {"2g.10gb": (14, 2, 28, 9856), "3g.20gb": (9, 4, 42, 19968), "4g.20gb": (5, 4, 56, 19968)}
            | {"7g.40gb": (0, 8, 98, 40192)},
        ),
        (
            "A100-80",
            {"1g.10gb": (19, 1, 14, 9856), "1g.10gb+me": (20, 1, 14, 9856), "1g.20gb": (15, 2, 14, 19968)}
            | {"2g.20gb": (14, 2, 28, 19968), "3g.40gb": (9, 4, 42, 40192), "4g.40gb": (5, 4, 56, 40192)}
            | {"7g.80gb": (0, 8, 98, 80384)},
        ),
        (
            "H200",
            {"1g.18gb": (19, 1, 16, 16384), "1g.18gb+me": (20, 1, 16, 16384), "1g.35gb": (15, 2, 26, 33280)}
            | {"2g.35gb": (14, 2, 32, 33280), "3g.71gb": (9, 4, 60, 71424), "4g.71gb": (5, 4, 64, 71424)}
            | {"7g.141gb": (0, 8, 132, 143360)},
        ),
        (
            "B200",
            {"1g.23gb": (19, 1, None, 20992), "1g.23gb+me": (20, 1, None, 20992), "1g.45gb": (15, 2, None, None)}
            | {"2g.45gb": (14, 2, None, None), "3g.90gb": (9, 4, None, None), "4g.90gb": (5, 4, None, None)}
            | {"7g.180gb": (0, 8, None, None)},
        ),
    ],
)
def test_ids_memory_slices_multiprocessors_and_memory(
    gpu: str, figures: dict[str, tuple[int, int, int | None, int | None]]
) -> None:
    assert {
        each.name: (each.id, each.memory, each.multiprocessors, each.memory_mib) for each in GEOMETRIES[gpu].profiles
    } == figures


@pytest.mark.parametrize(
    ("profile", "share"),
    [("7g.80gb", 1), ("3g.40gb", 3 / 7), ("2g", 2 / 7), ("4g.24gb", 1), ("1g.6gb+me", 0.25), ("1g.99gb", 1 / 7)],
)
def test_the_share_of_a_gpu_that_an_instance_is(profile: str, share: float) -> None:
    assert share_of_gpu(profile) == pytest.approx(share)


def test_an_a30_has_four_slices() -> None:
    geometry = GEOMETRIES["A30"]
    assert (geometry.compute, geometry.memory) == (4, 4)
    assert geometry.find("2g").starts == (0, 2)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("3g.40gb", "3g.40gb"),
        ("MIG 3g.40gb", "3g.40gb"),
        ("7g.79gb", "7g.80gb"),
        ("7G.80GB", "7g.80gb"),
        ("1g", "1g.10gb"),
        ("1g.20gb", "1g.20gb"),
        ("1g+me", "1g.10gb+me"),
        ("1g.10gb+me", "1g.10gb+me"),
    ],
)
def test_profiles_are_found_by_what_they_are(written: str, found: str) -> None:
    assert GEOMETRIES["H100-80"].find(written).name == found


@pytest.mark.parametrize("written", ["5g.40gb", "3g.20gb", "1c.3g.40gb", "large", "", "2g+me", "1g.10gb+gfx"])
def test_an_unknown_profile_is_reported_with_the_known_ones(written: str) -> None:
    with pytest.raises(ConfigError) as refused:
        GEOMETRIES["H100-80"].find(written)
    assert str(refused.value).startswith(
        f"'{written}' is not a profile of H100-80; expected one of 7g.80gb, 4g.40gb, 3g.40gb, "
    )


def test_an_unknown_gpu_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'T4': unknown GPU; expected one of A30, A100-40, "):
        find_geometry("T4")


def test_a_geometry_may_come_from_a_driver() -> None:
    profiles = [MigProfile("1g.24gb", 47, 1, 1, (0, 1, 2, 3)), MigProfile("4g.96gb", 32, 4, 4, (0,))]
    geometry = geometry_of("RTX PRO 6000", profiles)
    assert (geometry.compute, geometry.memory) == (4, 4)
    assert [profile.name for profile in geometry.profiles] == ["4g.96gb", "1g.24gb"]
