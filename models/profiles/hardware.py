"""Identifies the hardware and runtime of a measurement, in words that can be compared and read."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

SIMULATED = "simulated"
"""The fingerprint of figures that were computed, not measured."""


def hardware_id() -> str:
    """The machine's processor, its cores, the version of ONNX Runtime, and its GPUs if it has any.

    For example `AMD EPYC | 2 cores | onnxruntime 1.32.0`. Cores are all of the machine's, online or not available to
    this process; a partition's own number of cores is in its kind.
    """
    parts = [cpu_model(), f"{os.cpu_count()} cores", f"onnxruntime {_runtime_version()}", *gpu_models()]
    return " | ".join(parts)


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor as the kernel names it, or its architecture where it has no name there, as on most ARM machines."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names and names[0] else platform.machine()


def gpu_models(directory: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """The models of NVIDIA GPUs as their driver names them, in its order; empty without a driver."""
    lines = [
        line
        for file in sorted(directory.glob("*/information"))
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]


def _runtime_version() -> str:
    for distribution in ("onnxruntime-gpu", "onnxruntime"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "missing"
