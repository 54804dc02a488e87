import json
from pathlib import Path

import pytest

from sluice.gateway.cli.main import main
from sluice.models.profiles.file import FigureSource, ModelProfile, ProfileEntry, write_profile
from sluice.models.profiles.measurement import Cell

FILE = """
devices: {gpu0: 16384, gpu1: 16384}
models:
  resnet50: {request_mib: 8192, serve_mib: 3100, load_mib: 4200, share: 0.5}
  bert: {request_mib: 8192, serve_mib: 5200, load_mib: 6900, share: 0.5}
  llama: {request_mib: 16384, serve_mib: 13900, load_mib: 15200}
  vgg19: {request_mib: 8192, serve_mib: 2700}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "models.yaml"
    path.write_text(FILE, encoding="utf-8")
    return str(path)


def test_models_are_packed_by_measured_peaks(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", "pack", file]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "peak_safe: 4 of 4 models on 2 devices",
        "  device  model             counts for   asks for  share",
        "  gpu0              13900 of 16384 MiB  16384 MiB      -",
        "          llama              13900 MiB  16384 MiB      -",
        "  gpu1              11000 of 16384 MiB  24576 MiB   100%",
        "          bert                5200 MiB   8192 MiB    50%",
        "          resnet50            3100 MiB   8192 MiB    50%",
        "          vgg19               2700 MiB   8192 MiB      -",
    ]


def test_the_reason_of_a_model_without_a_place_is_reported(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", "pack", file, "--policy", "best_fit"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "best_fit: 3 of 4 models on 2 devices"
    assert lines[-3:] == [
        "vgg19 fits on no device:",
        "  gpu0: takes 8192 MiB, and 0 of 16384 are not reserved",
        "  gpu1: takes 8192 MiB, and 0 of 16384 are not reserved",
    ]


def test_programs_read_json(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", "pack", file, "--policy", "first_fit_decreasing", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["policy"] == "first_fit_decreasing"
    assert document["devices"][0] == {
        "name": "gpu0",
        "memory_mib": 16384,
        "peak_mib": 15200,
        "models": [{"name": "llama", "counts_for_mib": 16384, "request_mib": 16384, "share": 0.0}],
    }
    assert list(document["refused"]) == ["vgg19"]


def test_a_profile_tells_what_a_model_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = (Cell(1, 100, 110, 150, 300),)
    measured = ProfileEntry(
        fingerprint="here",
        kind="cpu1",
        source=FigureSource.MEASURED,
        sha256="aa",
        cells=cells,
        memory_rest_bytes=100 * 2**20,
        memory_row_bytes=2**20 + 1,
    )
    unmeasured = ProfileEntry(fingerprint="here", kind="cpu2", source=FigureSource.MEASURED, sha256="aa", cells=cells)
    write_profile(tmp_path / "profile.json", ModelProfile(entries=(measured, unmeasured)))
    path = tmp_path / "models.yaml"
    text = "{{devices: {{cpu0: 1000}}, models: {{a: {{profile: {{file: profile.json, kind: {}, batch: 8}}}}}}}}"
    path.write_text(text.format("cpu1"), encoding="utf-8")
    assert main(["partitions", "pack", str(path)]) == 0
    assert "109 of 1000 MiB" in capsys.readouterr().out
    for kind, reason in (
        ("cpu2", "the memory on partitions of kind cpu2 was not measured"),
        ("cpu4", "there is no profile for partitions of kind cpu4; the profile has cpu1, cpu2"),
    ):
        path.write_text(text.format(kind), encoding="utf-8")
        assert main(["partitions", "pack", str(path)]) == 2
        assert f"profile.json: {reason}" in capsys.readouterr().err
    (tmp_path / "profile.json").unlink()
    assert main(["partitions", "pack", str(path)]) == 2
    assert f"{tmp_path / 'profile.json'}: there is no profile; " in capsys.readouterr().err


def test_compute_is_not_promised_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.yaml"
    models = "{a: {serve_mib: 3, share: 0.5}, b: {serve_mib: 2, share: 0.125}, c: {serve_mib: 1, share: 0.376}}"
    path.write_text(f"{{devices: {{gpu: 1000}}, models: {models}}}", encoding="utf-8")
    assert main(["partitions", "pack", str(path)]) == 1
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == "  gpu: requests 37.6% of the compute, and 37.5% is not reserved (a 50%, b 12.5%)"


def test_a_device_that_can_run_out_of_memory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.yaml"
    models = "{a: {request_mib: 400, serve_mib: 700}, b: {request_mib: 400, serve_mib: 600}}"
    path.write_text(f"{{devices: {{gpu: 1000}}, models: {models}}}", encoding="utf-8")
    assert main(["partitions", "pack", str(path), "--policy", "best_fit"]) == 0
    printed = capsys.readouterr().out.splitlines()[-1]
    assert printed == "gpu can run out of memory: the measured peaks of its models add up to 1300 MiB"


def test_the_policy_of_the_file_has_its_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "models.yaml"
    text = (
        "{{devices: {{gpu: 1000}}, models: {{a: {{serve_mib: 900}}}}, policy: {{name: peak_safe, headroom_mib: {}}}}}"
    )
    path.write_text(text.format(100), encoding="utf-8")
    assert main(["partitions", "pack", str(path)]) == 0
    path.write_text(text.format(101), encoding="utf-8")
    capsys.readouterr()
    assert main(["partitions", "pack", str(path), "--policy", "peak_safe"]) == 1
    assert "gpu: all would come to 900 MiB, of 1000 less 101 of headroom" in capsys.readouterr().out


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partitions", "pack", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read: " in capsys.readouterr().err
