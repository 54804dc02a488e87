from pathlib import Path

import pytest

from sluice.models.errors import ConfigError
from sluice.models.profiles.csv_format import read_csv, write_csv
from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry
from sluice.models.profiles.measurement import Cell

HEADER = (
    "fingerprint,kind,source,sha256,memory_rest_bytes,memory_row_bytes,load_ns,warm_up_ns,"
    "batch,p50_ns,p90_ns,p99_ns,samples,no_memory_batch,unenforced"
)
PROFILE = ModelProfile(
    entries=(
        ProfileEntry(
            fingerprint="AMD EPYC, Milan | 2 cores",
            kind="cpu1",
            source=FigureSource.MEASURED,
            sha256="0123",
            cells=(Cell(1, 100, 110, 150, 300), Cell(4, 240, 260, 300, 200)),
            memory_rest_bytes=1000,
            memory_row_bytes=10,
            load_ns=5000,
            warm_up_ns=0,
        ),
        ProfileEntry(
            fingerprint="H200",
            kind="mps-25",
            source=FigureSource.MEASURED,
            sha256="0123",
            cells=(Cell(1, 7, 8, 9, 5),),
            no_memory_batch=8,
            unenforced=("no daemon", "no device"),
        ),
        ProfileEntry(
            fingerprint="simulated",
            kind="mig-1g",
            source=FigureSource.SIMULATED,
            sha256="0123",
            cells=(Cell(1, 7, 8, 9, 0),),
        ),
    )
)


def test_the_lines(tmp_path: Path) -> None:
    write_csv(tmp_path / "profile.csv", PROFILE)
    assert (tmp_path / "profile.csv").read_text().splitlines() == [
        HEADER,
        '"AMD EPYC, Milan | 2 cores",cpu1,measured,0123,1000,10,5000,0,1,100,110,150,300,,',
        '"AMD EPYC, Milan | 2 cores",cpu1,measured,0123,1000,10,5000,0,4,240,260,300,200,,',
        "H200,mps-25,measured,0123,,,,,1,7,8,9,5,8,no daemon; no device",
        "simulated,mig-1g,simulated,0123,,,,,1,7,8,9,0,,",
    ]


def test_what_is_exported_is_imported_again(tmp_path: Path) -> None:
    write_csv(tmp_path / "profile.csv", PROFILE)
    assert read_csv(tmp_path / "profile.csv") == PROFILE


def test_columns_may_come_in_any_order(tmp_path: Path) -> None:
    write_csv(tmp_path / "profile.csv", PROFILE)
    lines = [line.rsplit(",", 1) for line in (tmp_path / "profile.csv").read_text().splitlines()]
    (tmp_path / "turned.csv").write_text("".join(f"{last},{rest}\n" for rest, last in lines))
    assert read_csv(tmp_path / "turned.csv") == PROFILE


def test_columns_that_say_what_is_seldom_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(f"{HEADER.removesuffix(',no_memory_batch,unenforced')}\nhere,cpu1,measured,01,,,,,1,7,8,9,5\n")
    (entry,) = read_csv(path).entries
    assert (entry.no_memory_batch, entry.unenforced) == (None, ())


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("here,cpu1,measured,01,,,,,1,0,2,3,9", "line 2: p50_ns: Expected `int` >= 1"),
        ("here,cpu1,measured,01,,,,,1,x,2,3,9", "line 2: p50_ns: Expected `int`, got `str`"),
        ("here,cpu1,measured,01,,,,,1,,2,3,9", "line 2: p50_ns: Expected `int`, got `null`"),
        (f"here,cpu1,measured,01,,,,,1,{'9' * 5000},2,3,9", "line 2: p50_ns: Expected `int`, got `str`"),
        ("here,cpu1,guessed,01,,,,,1,1,2,3,9", "line 2: source: Invalid enum value 'guessed'"),
        ("here,cpu1,simulated,01,,,,,1,1,2,3,9", "line 2: expected fingerprint 'simulated' for simulated figures"),
        ("here,cpu1,measured,01,,,,,2,3,2,3,9", "line 2: expected p50_ns <= p90_ns <= p99_ns"),
    ],
)
def test_a_wrong_field_is_refused_with_its_line_and_column(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(f"{HEADER}\n{line}\n")
    with pytest.raises(ConfigError) as error:
        read_csv(path)
    assert str(error.value).startswith(f"{path}: {expected}")


def test_other_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.csv").write_text("batch,p50_ms\n1,2\n")
    with pytest.raises(ConfigError, match=r"profile\.csv: line 1: expected the columns fingerprint, kind, source, sha"):
        read_csv(tmp_path / "profile.csv")
