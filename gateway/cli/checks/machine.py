"""The checks of `sluice doctor`: each yields findings about this machine."""

import locale
import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions

from sluice.gateway.cli.text.partition_report import gpu_lines, partition_lines
from sluice.gateway.config.configured_partitions import configured_partitions
from sluice.gateway.config.contradictions import contradictions
from sluice.gateway.config.server_config import ServerConfig
from sluice.gateway.server.limits import Finding, Severity, check_limits
from sluice.gateway.version import is_compiled, server_version
from sluice.models.errors import ControlFailed, ServingError
from sluice.mps.daemon.processes import PROGRAM
from sluice.mps.nvidia.free_memory import free_capacity
from sluice.mps.nvidia.nvml import open_nvml
from sluice.mps.partitions.capacity_check import check_capacity
from sluice.mps.partitions.cpu import check_partitions
from sluice.mps.partitions.isolation_report import CUDA, isolation_violations
from sluice.mps.partitions.partition import CpuPartition, MpsPartition, Partition
from sluice.mps.worker.isolation_probe import probe_partition

_RUNTIMES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "onnxruntime-training")
"""Distributions that all install the import name `onnxruntime`."""


def run_checks(config: ServerConfig, model_bytes: int = 0, *, with_layout: bool = True) -> Iterator[Finding]:
    """All findings about this machine for a server with that configuration, whose workers begin with such models.

    `with_layout` also tries out its partitions.
    """
    try:
        partitions = configured_partitions(config)
    except ServingError as error:
        yield Finding("partitions", Severity.WRONG, str(error))
        partitions = ()
    for each in contradictions(config):
        yield Finding("config", Severity.NOTE, f"{each.place}: {each.text}")
    yield check_build()
    yield from check_packages()
    yield from check_providers(partitions)
    yield from check_locale()
    yield from check_drivers(partitions)
    yield from check_limits(config, partitions, model_bytes)
    if with_layout:
        yield from check_layout(partitions)


def check_build() -> Finding:
    """Report the version, and whether core and hot path are compiled."""
    built = "compiled" if is_compiled() else "in pure Python (a wheel built with SLUICE_COMPILE=1 has it compiled)"
    return Finding("build", Severity.OK, f"Sluice {server_version()}, hot path {built}")


def check_packages() -> Iterator[Finding]:
    """Check that exactly one ONNX Runtime is installed."""
    found: dict[str, dict[str, str]] = {}  # by directory, in the order in which Python searches them
    for each in distributions():
        name = str(each.metadata["Name"]).lower()
        if name in _RUNTIMES:
            found.setdefault(str(each.locate_file("")), {})[name] = each.version
    first = next(iter(found.values()), {})
    listed = ", ".join(f"{name} {first[name]}" for name in _RUNTIMES if name in first)
    if len(first) > 1:
        text = f"{listed} are installed into the same directory; uninstall all of them and install one"
        yield Finding("packages", Severity.WRONG, text)
    elif first:
        yield Finding("packages", Severity.OK, listed)


def check_providers(partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Check the execution providers of ONNX Runtime."""
    try:
        from sluice.models.backends.onnxruntime import available_providers
    except ImportError as error:
        hint = "install 'sluice-gateway[cpu]' or 'sluice-gateway[gpu]'"
        yield Finding("providers", Severity.WRONG, f"ONNX Runtime cannot be imported ({error}); {hint}")
        return
    version, found = available_providers()
    yield Finding("providers", Severity.OK, f"ONNX Runtime {version}: {', '.join(found)}")
    gpus = [each.name for each in partitions if not isinstance(each, CpuPartition)]
    if gpus and CUDA not in found:
        text = f"partition {gpus[0]} needs a GPU, but this ONNX Runtime has no {CUDA}"
        yield Finding("providers", Severity.WRONG, text)


def check_locale() -> Iterator[Finding]:
    """Check the locale that models of text need."""
    try:
        from sluice.models.backends.onnxruntime import TEXT_LOCALE, missing_locale
    except ImportError:  # `check_providers` reports it
        return
    before = locale.setlocale(locale.LC_ALL)
    try:
        locale.setlocale(locale.LC_ALL, TEXT_LOCALE)
        yield Finding("locale", Severity.OK, f"{TEXT_LOCALE}: models can change the case of text")
    except locale.Error:
        text = f"{TEXT_LOCALE}, for ONNX models that change the case of text: {missing_locale(TEXT_LOCALE)}"
        yield Finding("locale", Severity.NOTE, text)
    finally:
        locale.setlocale(locale.LC_ALL, before)


def check_drivers(partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Check the GPUs that the driver reports and the program that controls MPS."""
    wanted = [each.name for each in partitions if not isinstance(each, CpuPartition)]
    try:
        with open_nvml() as nvml:
            for gpu in nvml.gpus():
                severity = Severity.WRONG if gpu.lost else Severity.OK
                yield Finding("drivers", severity, "; ".join(line.strip() for line in gpu_lines(gpu)))
    except ControlFailed as error:
        if wanted:
            yield Finding("drivers", Severity.WRONG, f"partition {wanted[0]} needs a GPU: {error}")
        else:
            yield Finding("drivers", Severity.NOTE, f"no GPUs: {error}")
    shared = [each.name for each in partitions if isinstance(each, MpsPartition)]
    program = shutil.which(PROGRAM)
    if program is not None:
        yield Finding("drivers", Severity.OK, f"MPS: {program}")
    elif shared:
        yield Finding("drivers", Severity.WRONG, f"partition {shared[0]} needs MPS, but {PROGRAM} is not installed")


def check_layout(partitions: Sequence[Partition]) -> Iterator[Finding]:
    """Check the configured partitions; each is tried out where that is possible without a server."""
    try:
        check_partitions(partitions)
        check_capacity(partitions, free_capacity(partitions))
    except ServingError as error:
        yield Finding("partitions", Severity.WRONG, str(error))
        return
    for partition, line in zip(partitions, partition_lines(partitions), strict=True):
        if isinstance(partition, MpsPartition):
            yield Finding(
                "partitions", Severity.NOTE, f"{line}: only a running server, with its MPS daemon, can prove it"
            )
            continue
        try:
            reasons = isolation_violations(partition, probe_partition(partition))
        except ServingError as error:
            reasons = [str(error)]
        if reasons:
            yield Finding("partitions", Severity.WRONG, f"{line}: unenforced: {'; '.join(reasons)}")
        else:
            yield Finding("partitions", Severity.OK, f"{line}: enforced")
