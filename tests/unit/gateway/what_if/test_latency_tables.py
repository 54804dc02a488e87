from pathlib import Path

import pytest

from sluice.gateway.config.remote_settings import DnsSettings, PartitionSettings, RemoteClass
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.what_if.answer import TableSource
from sluice.gateway.what_if.latency_tables import latency_tables, planned_partitions, remote_partitions
from sluice.models.errors import ConfigError
from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry, model_hash, write_profile
from sluice.models.profiles.hardware import SIMULATED, hardware_id
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Cell
from sluice.models.repository.scan import ModelEntry, entry_of_file
from sluice.mps.partitions.cpu import available_cores
from sluice.mps.partitions.partition import CpuPartition, MigPartition, MpsPartition
from tests.support.models.onnx_models import save_mlp

CPU = CpuPartition("cpu0", available_cores()[:1])
FULL = tuple(Cell(size, size * 1000, size * 1100, size * 1200, 100) for size in (1, 2, 4, 8))


@pytest.fixture
def model(tmp_path: Path) -> ModelEntry:
    """A model with batches of up to 8."""
    return entry_of_file(save_mlp(tmp_path / "mlp.onnx", [4, 3]), 8)


def store(
    model: ModelEntry,
    cells: tuple[Cell, ...] = FULL,
    *,
    kind: str = "cpu1",
    hardware: str = hardware_id(),
    sha: str = "",
) -> None:
    source = FigureSource.SIMULATED if hardware == SIMULATED else FigureSource.MEASURED
    entry = ProfileEntry(
        fingerprint=hardware, kind=kind, source=source, sha256=sha or model_hash(model.path), cells=cells
    )
    write_profile(model.path.with_name("mlp.profile.json"), ModelProfile(entries=(entry,)))


def used(model: ModelEntry) -> tuple[TableSource, tuple[str, ...], list[str]]:
    """Where the latencies on one core come from, what is noted of them, and what was announced."""
    reported: list[str] = []
    _, (one,) = latency_tables([model], [CPU], None, reported.append)
    return one.source, one.notes, reported


def test_stored_medians_are_taken(model: ModelEntry) -> None:
    store(model)
    tables, _ = latency_tables([model], [CPU, CPU], None, print)
    assert tables == {"mlp:1": {"cpu1": LatencyTable(((1, 1000), (2, 2000), (4, 4000), (8, 8000)))}}
    assert used(model) == (TableSource.MEASURED, (), [])


def test_what_falls_or_is_missing_in_between_is_noted(model: ModelEntry) -> None:
    store(model, (Cell(1, 1000, 1000, 1000, 9), Cell(2, 900, 1000, 1000, 9), Cell(8, 1000, 1000, 1000, 9)))
    assert used(model)[1] == (
        "batch 2 is quicker than batch 1 at the median (900 against 1000 ns)",
        "batches of 4 are not in the profile and count like the next larger size",
    )


def test_without_a_profile_models_are_timed_and_it_is_said(model: ModelEntry) -> None:
    source, notes, reported = used(model)
    assert (source, notes) == (TableSource.TIMED_NOW, ("there is no stored profile",))
    assert reported == ["timing mlp:1 on cpu1: there is no stored profile"]
    tables, _ = latency_tables([model], [CPU], None, print)
    assert [size for size, _ in tables["mlp:1"]["cpu1"].cells] == [1, 2, 4, 8]
    assert not model.path.with_name("mlp.profile.json").exists()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sha": "00"}, "the stored profile is stale: it was measured with another model file"),
        ({"hardware": "other"}, "the stored profile is stale: it was measured on other hardware (other), this is"),
        ({"kind": "cpu2"}, "there is no profile for partitions of kind cpu1; the profile has cpu2"),
    ],
)
def test_a_profile_that_does_not_fit_is_said_and_models_are_timed(
    model: ModelEntry, fields: dict[str, str], reason: str
) -> None:
    store(model, **fields)  # type: ignore[arg-type]
    source, (note,), _ = used(model)
    assert source is TableSource.TIMED_NOW
    assert note.startswith(reason)


def test_a_profile_that_ends_too_soon_is_not_taken_as_no_server_takes_it(model: ModelEntry) -> None:
    store(model, FULL[:2])
    assert used(model)[1] == ("the stored profile ends at batch 2, and batches may have 8",)


def test_a_zero_in_a_profile_is_reported_with_its_place(model: ModelEntry) -> None:
    store(model)
    path = model.path.with_name("mlp.profile.json")
    path.write_text(path.read_text().replace('"p50_ns": 2000', '"p50_ns": 0'))
    source, (note,), _ = used(model)
    assert source is TableSource.TIMED_NOW
    assert "p50_ns: Expected `int` >= 1" in note


def test_partitions_that_are_not_here_need_a_simulated_profile(model: ModelEntry) -> None:
    mig = MigPartition("gpu", "", "1g")
    with pytest.raises(ConfigError, match=r"mlp:1 on mig-1g: .*sluice profile .*mlp.onnx --simulate resnet50 --part"):
        latency_tables([model], [mig], None, print)
    with pytest.raises(ConfigError, match=r"sluice profile --repository models mlp:1 --simulate"):
        latency_tables([model], [mig], Path("models"), print)
    store(model, FULL[:2], kind="mig-1g", hardware=SIMULATED)
    tables, (one,) = latency_tables([model], [mig], None, print)
    assert one.source is TableSource.SIMULATED
    assert one.notes == ("batches of 4, 8 are not in the profile and not planned for",)
    assert tables["mlp:1"]["mig-1g"].cells == ((1, 1000), (2, 2000))


def test_more_cores_than_there_are_need_a_profile(model: ModelEntry) -> None:
    with pytest.raises(ConfigError, match=r"mlp:1 on cpu999: .* may use only"):
        latency_tables([model], planned_partitions("cpu999"), None, print)


def test_kinds_of_partitions() -> None:
    found = planned_partitions("cpu1,cpu2/x3,mig-1g.10gb,mps-20,mps-20")
    assert [partition.profile_kind for partition in found] == ["cpu1", "cpu2/x3", "mig-1g.10gb", "mps-20", "mps-20"]
    assert len({partition.name for partition in found}) == 5
    assert isinstance(found[2], MigPartition)
    assert isinstance(found[3], MpsPartition)
    assert [partition.profile_kind for partition in planned_partitions("1")] == [f"cpu{len(available_cores())}"]


@pytest.mark.parametrize("kinds", ["gpu", "cpu0", "", "mps-5", "mig-9g", "cpu1,,cpu1", "cpu1/x0", "cpu1/x1.2.3"])
def test_what_is_no_kind(kinds: str) -> None:
    with pytest.raises(ConfigError):
        planned_partitions(kinds)


def test_remote_partitions_are_planned_as_if_they_were_here() -> None:
    edge = RemoteClass("edge", "cpu2/x3", urls=("10.0.0.5:9001",), price=0.5, memory_mb=100)
    pods = RemoteClass("pods", "mig-1g.10gb", dns=DnsSettings("workers.test", 9001, 2))
    config = ServerConfig(partitions=PartitionSettings(remote=(edge, pods)))
    found = remote_partitions(config)
    assert [(each.name, each.profile_kind, each.price, each.memory_mb) for each in found] == [
        ("edge-0", "cpu2/x3", 0.5, 100),
        ("pods-0", "mig-1g.10gb", None, None),
        ("pods-1", "mig-1g.10gb", None, None),
    ]
