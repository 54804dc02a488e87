import pytest

from sluice.models.profiles.partition_kind import PartitionKind, parse_kind, with_host_cores


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cpu2", PartitionKind(cores=2)),
        ("cpu1/x3", PartitionKind(cores=1, slowdown=3.0)),
        ("cpu16/x1.5", PartitionKind(cores=16, slowdown=1.5)),
        ("mig-1g", PartitionKind(profile="1g")),
        ("mig-1g.10gb", PartitionKind(profile="1g.10gb")),
        ("mig-1g.10gb+me", PartitionKind(profile="1g.10gb+me")),
        ("mps-20", PartitionKind(percent=20)),
        ("mig-2g+c4", PartitionKind(profile="2g", host_cores=4)),
        ("mig-1g.10gb+me+c16", PartitionKind(profile="1g.10gb+me", host_cores=16)),
        ("mps-20+c2", PartitionKind(percent=20, host_cores=2)),
    ],
)
def test_what_a_kind_says(name: str, kind: PartitionKind) -> None:
    assert parse_kind(name) == kind


@pytest.mark.parametrize(
    "name",
    [
        "",
        "cpu",
        "cpu0",
        "cpu1/x",
        "cpu1/x1.2.3",
        "cpu2/3",
        "mig-8g",
        "mps-",
        "mps-1000",
        "gpu",
        "mig-2g+c0",
        "cpu2+c1",
        "mps-20+c",
    ],
)
def test_what_is_no_kind(name: str) -> None:
    assert parse_kind(name) is None


def test_a_kind_names_the_host_cores_of_its_workers_unless_they_have_all() -> None:
    assert with_host_cores("mig-2g", 4) == "mig-2g+c4"
    assert with_host_cores("mig-2g", 0) == "mig-2g"
