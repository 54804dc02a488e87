import logging
from pathlib import Path

import pytest

from sluice.gateway.deployment.stored_profiles import model_memory, stored_entries, stored_tables
from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry, model_hash, write_profile
from sluice.models.profiles.hardware import hardware_id
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Cell
from sluice.models.repository.scan import ModelEntry, entry_of_file
from tests.support.models.onnx_models import save_mlp

CELLS = tuple(Cell(size, size * 1000, size * 1100, size * 1200, 100) for size in (1, 2, 4, 8))
MEDIANS = LatencyTable(((1, 1000), (2, 2000), (4, 4000), (8, 8000)))


@pytest.fixture
def model(tmp_path: Path) -> ModelEntry:
    """A model with batches of up to 8."""
    return entry_of_file(save_mlp(tmp_path / "mlp.onnx", [4, 3]), 8)


def store(
    model: ModelEntry,
    kind: str = "cpu1",
    cells: tuple[Cell, ...] = CELLS,
    hardware: str = hardware_id(),
    sha256: str | None = None,
    memory: tuple[int | None, int | None] = (None, None),
) -> None:
    source = FigureSource.SIMULATED if hardware == "simulated" else FigureSource.MEASURED
    entry = ProfileEntry(
        fingerprint=hardware,
        kind=kind,
        source=source,
        sha256=sha256 or model_hash(model.path),
        cells=cells,
        memory_rest_bytes=memory[0],
        memory_row_bytes=memory[1],
    )
    write_profile(model.path.with_name("mlp.profile.json"), ModelProfile(entries=(entry,)))


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Why profiles were not used, of the warnings logged."""
    return [record.__dict__["fields"]["reason"] for record in caplog.records if record.levelno == logging.WARNING]


def test_the_medians_of_a_fresh_profile_by_kind(model: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    store(model)
    assert stored_tables(model, stored_entries(model, ["cpu1", "cpu2", "cpu1"])) == {"cpu1": MEDIANS}
    assert reasons(caplog) == []


def test_without_a_profile_there_is_nothing_to_say(model: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    assert stored_tables(model, stored_entries(model, ["cpu1"])) == {}
    assert reasons(caplog) == []


def test_a_profile_of_other_hardware_is_not_used(model: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    store(model, hardware="another machine")
    assert stored_tables(model, stored_entries(model, ["cpu1"])) == {}
    assert reasons(caplog) == [
        f"{model.path.with_name('mlp.profile.json')}: cpu1: it was measured on other hardware (another machine), "
        f"this is {hardware_id()}"
    ]


def test_a_profile_of_another_model_file_is_not_used(model: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    store(model)
    save_mlp(model.path, [4, 5, 3])
    assert stored_tables(model, stored_entries(model, ["cpu1"])) == {}
    assert reasons(caplog) == [
        f"{model.path.with_name('mlp.profile.json')}: cpu1: it was measured with another model file"
    ]


def test_a_stale_entry_is_reported_beside_a_simulated_one(model: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    path, sha256 = model.path.with_name("mlp.profile.json"), model_hash(model.path)
    there = ProfileEntry(fingerprint="there", kind="cpu1", source=FigureSource.MEASURED, sha256=sha256, cells=CELLS)
    simulated = ProfileEntry(
        fingerprint="simulated", kind="mps-20", source=FigureSource.SIMULATED, sha256=sha256, cells=CELLS
    )
    write_profile(path, ModelProfile(entries=(there, simulated)))
    assert stored_entries(model, ["cpu1", "mps-20"]) == {"mps-20": simulated}
    assert reasons(caplog) == [f"{path}: cpu1: it was measured on other hardware (there), this is {hardware_id()}"]


def test_a_simulated_profile_is_not_used(model: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    store(model, hardware="simulated")
    assert stored_tables(model, stored_entries(model, ["cpu1"])) == {}
    assert reasons(caplog) == ["the one for cpu1 is simulated"]


def test_a_profile_that_ends_below_the_largest_batch_is_not_used(
    model: ModelEntry, caplog: pytest.LogCaptureFixture
) -> None:
    store(model, cells=CELLS[:3])
    assert stored_tables(model, stored_entries(model, ["cpu1"])) == {}
    assert reasons(caplog) == ["the one for cpu1 ends at batch 4, and batches may have 8"]


def test_a_profile_with_a_hole_is_used(model: ModelEntry) -> None:
    store(model, cells=(CELLS[0], CELLS[3]))
    table = stored_tables(model, stored_entries(model, ["cpu1"]))["cpu1"]
    assert [table.latency_ns(rows) for rows in (1, 2, 8)] == [1000, 8000, 8000]


def test_a_broken_profile_is_not_used(model: ModelEntry, caplog: pytest.LogCaptureFixture) -> None:
    path = model.path.with_name("mlp.profile.json")
    path.write_text('{"format": 1, "entries": 3}')
    assert stored_tables(model, stored_entries(model, ["cpu1"])) == {}
    assert reasons(caplog) == [f"{path}: entries: Expected `array`, got `int`"]


@pytest.mark.parametrize(("memory", "expected"), [((5000, 100), 5800), ((5000, None), 5000)])
def test_a_model_takes_what_was_stored_of_its_largest_batch(
    model: ModelEntry, memory: tuple[int | None, int | None], expected: int
) -> None:
    store(model, memory=memory)
    assert model_memory(model, stored_entries(model, ["cpu1"])) == expected


def test_a_model_takes_the_size_of_its_file_where_nothing_was_measured(model: ModelEntry) -> None:
    store(model)
    assert model_memory(model, stored_entries(model, ["cpu1"])) == model.path.stat().st_size
