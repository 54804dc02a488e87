import os
from importlib.metadata import version
from pathlib import Path

from sluice.models.profiles.hardware import cpu_model, gpu_models, hardware_id


def test_what_tells_hardware_apart_is_in_it() -> None:
    parts = hardware_id().split(" | ")
    assert parts[:3] == [cpu_model(), f"{os.cpu_count()} cores", f"onnxruntime {version('onnxruntime')}"]
    assert parts[3:] == gpu_models()


def test_the_processor_is_named_as_by_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Intel(R) Xeon(R) Gold 6338\nmodel name\t: second\n"
    )
    assert cpu_model(tmp_path / "cpuinfo") == "Intel(R) Xeon(R) Gold 6338"
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    assert cpu_model(tmp_path / "cpuinfo") == os.uname().machine
    assert cpu_model(tmp_path / "nothing") == os.uname().machine


def test_gpus_are_named_as_by_their_driver(tmp_path: Path) -> None:
    assert gpu_models(tmp_path / "nothing") == []
    for address in ("0000:65:00.0", "0000:17:00.0"):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(f"Model: \t\t NVIDIA H100 at {address}\nIRQ:   \t\t 16\n")
    assert gpu_models(tmp_path) == ["NVIDIA H100 at 0000:17:00.0", "NVIDIA H100 at 0000:65:00.0"]
