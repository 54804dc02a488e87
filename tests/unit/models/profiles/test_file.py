import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from sluice.models.errors import ConfigError
from sluice.models.profiles.file import (
    FigureSource,
    ModelProfile,
    ProfileEntry,
    ProfileMissing,
    ProfileStale,
    model_hash,
    profile_path,
    read_profile,
    write_profile,
)
from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.profiles.measurement import Cell

HERE, THERE = "AMD EPYC | 2 cores | onnxruntime 1.32.0", "Neoverse-N1 | 4 cores | onnxruntime 1.32.0"
CELLS = (Cell(1, 100, 110, 150, 300), Cell(4, 240, 260, 300, 200))


def entry(
    kind: str = "cpu1", fingerprint: str = HERE, sha256: str = "aa", cells: tuple[Cell, ...] = CELLS
) -> ProfileEntry:
    source = FigureSource.SIMULATED if fingerprint == "simulated" else FigureSource.MEASURED
    return ProfileEntry(
        fingerprint=fingerprint,
        kind=kind,
        source=source,
        sha256=sha256,
        cells=cells,
        memory_rest_bytes=1000,
        memory_row_bytes=10,
        load_ns=5000,
        warm_up_ns=600,
    )


def document(**changes: Any) -> dict[str, Any]:
    """A profile as JSON, with changes to its second cell."""
    cells = [
        {"batch": 1, "p50_ns": 100, "p90_ns": 110, "p99_ns": 150, "samples": 300},
        {"batch": 4, "p50_ns": 240, "p90_ns": 260, "p99_ns": 300, "samples": 200} | changes,
    ]
    return {
        "format": 1,
        "entries": [{"fingerprint": HERE, "kind": "cpu1", "source": "measured", "sha256": "aa", "cells": cells}],
    }


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile = ModelProfile(entries=(entry(), entry("mig-1g", "simulated")))
    write_profile(path, profile)
    assert read_profile(path) == profile
    assert json.loads(path.read_text())["format"] == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_profile_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, ModelProfile(entries=(entry(),)))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sluice.models.profiles.file.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_profile(path, ModelProfile(entries=()))
    assert read_profile(path).entries == (entry(),)
    assert list(tmp_path.iterdir()) == [path]


def test_where_profiles_lie() -> None:
    assert profile_path(Path("models/mlp/1/model.onnx"), "mlp") == Path("models/mlp/1/profile.json")
    assert profile_path(Path("models/slow/12/model.timed.json"), "slow") == Path("models/slow/12/profile.json")
    assert profile_path(Path("mlp.onnx"), "mlp") == Path("mlp.profile.json")
    assert profile_path(Path("1/mlp.onnx"), "mlp") == Path("1/mlp.profile.json")
    assert profile_path(Path("files/model.onnx"), "model") == Path("files/model.profile.json")


def test_the_hash_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mlp.onnx").write_bytes(b"weights")
    assert model_hash(tmp_path / "mlp.onnx") == hashlib.sha256(b"weights").hexdigest()


def test_tables_by_kind_and_percentile() -> None:
    profile = ModelProfile(entries=(entry(), entry("cpu2", cells=(Cell(1, 50, 60, 70, 5),))))
    assert profile.table("cpu1", 50) == LatencyTable(((1, 100), (4, 240)))
    assert profile.table("cpu1", 90) == LatencyTable(((1, 110), (4, 260)))
    assert profile.table("cpu2", 99) == LatencyTable(((1, 70),))
    with pytest.raises(ConfigError, match="percentile: expected one of 50, 90, 99, got 95"):
        profile.table("cpu1", 95)


def test_a_size_that_was_not_measured_takes_the_next_larger_cell() -> None:
    table = ModelProfile(entries=(entry(),)).table("cpu1", 50)
    assert [table.latency_ns(rows) for rows in (1, 2, 3, 4)] == [100, 240, 240, 240]


def test_a_larger_batch_that_is_quicker_is_kept_and_reported() -> None:
    odd = entry(cells=(Cell(1, 100, 110, 150, 9), Cell(2, 90, 95, 96, 9), Cell(4, 200, 210, 220, 9)))
    assert odd.warnings == ("batch 2 is quicker than batch 1 at the median (90 against 100 ns)",)
    assert odd.table(50) == LatencyTable(((1, 100), (2, 90), (4, 200)))
    assert entry().warnings == ()


def test_a_kind_that_was_not_measured_is_missing() -> None:
    profile = ModelProfile(entries=(entry("cpu1"), entry("cpu2")))
    with pytest.raises(ProfileMissing, match="no profile for partitions of kind cpu4; the profile has cpu1, cpu2"):
        profile.table("cpu4", 50)


def test_usable_are_the_entries_of_this_hardware_and_this_file_and_simulated_ones() -> None:
    here, simulated = entry(), entry("mps-20", "simulated")
    others = (entry(fingerprint=THERE), entry("cpu2", sha256="bb"))
    profile = ModelProfile(entries=(here, simulated, *others))
    assert profile.usable(HERE, "aa").entries == (here, simulated)
    assert simulated.label == "mps-20 SIMULATED"


def test_what_was_measured_goes_before_what_was_simulated() -> None:
    measured = entry("mps-20")
    assert ModelProfile(entries=(entry("mps-20", "simulated"), measured)).entry("mps-20") == measured


def test_a_profile_of_other_hardware_is_stale() -> None:
    with pytest.raises(ProfileStale, match=r"measured on other hardware \(Neoverse-N1 .*\), this is AMD EPYC"):
        ModelProfile(entries=(entry(fingerprint=THERE),)).usable(HERE, "aa")


def test_a_profile_of_another_model_file_is_stale() -> None:
    with pytest.raises(ProfileStale, match="another model file"):
        ModelProfile(entries=(entry(),)).usable(HERE, "bb")


def test_measuring_again_replaces_the_entry_and_keeps_those_of_other_hardware() -> None:
    there, old, new = entry(fingerprint=THERE), entry(sha256="aa"), entry(sha256="bb")
    assert ModelProfile(entries=(there, old)).merged([new]).entries == (new, there)


def test_a_file_that_is_not_there_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ProfileMissing, match=r"profile\.json: there is no profile; `sluice profile` makes one"):
        read_profile(tmp_path / "profile.json")


def test_a_profile_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "profile.json")
    with pytest.raises(ConfigError, match=r"profile\.json: expected a file, got a FIFO"):
        read_profile(tmp_path / "profile.json")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (document(p50_ns=0), "entries[0].cells[1].p50_ns: Expected `int` >= 1"),
        (document(p50_ns=-5), "entries[0].cells[1].p50_ns: Expected `int` >= 1"),
        (document(p99_ns=1 << 60), "entries[0].cells[1].p99_ns: Expected `int` <= 31536000000000000"),
        (document(p99_ns=250), "entries[0].cells[1]: expected p50_ns <= p90_ns <= p99_ns"),
        (document(batch=0), "entries[0].cells[1].batch: Expected `int` >= 1"),
        (document(batch=1), "entries[0]: expected cells with ascending batch sizes, got [1, 1]"),
        (document(p75_ns=1), "entries[0].cells[1]: Object contains unknown field `p75_ns`"),
        (document() | {"format": 2}, "format: expected 1, got 2"),
        ({"format": 1}, "Object missing required field `entries`"),
        ({"entries": []}, "Object missing required field `format`"),
        (document() | {"entries": document()["entries"] * 2}, f"two entries for cpu1 of {HERE}"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, content: dict[str, Any], expected: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as error:
        read_profile(path)
    assert str(error.value) == f"{path}: {expected}"


def test_a_simulated_entry_cannot_pass_for_a_measured_one(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    content = document()
    content["entries"][0]["fingerprint"] = "simulated"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="expected fingerprint 'simulated' for simulated figures, and only for them"):
        read_profile(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "Input data was truncated"),
        # The message depends on the version of msgspec.
        (b'{"format": 1, "\xff": 2}', "(not valid JSON: 'utf-8' codec can't decode byte 0xff|Invalid UTF-8 encoded)"),
        (b'{"format":1,"entries":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON: maximum rec"),
    ],
)
def test_what_is_not_json_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    (tmp_path / "profile.json").write_bytes(content)
    with pytest.raises(ConfigError, match=rf"profile\.json: {expected}"):
        read_profile(tmp_path / "profile.json")
