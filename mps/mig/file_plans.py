"""Plans for the GPUs of a layout file, starting from their state in the driver or in another file."""

from collections.abc import Sequence

from sluice.models.errors import ConfigError
from sluice.mps.mig.desired import GpuPlan, GpuState, plan_gpu
from sluice.mps.mig.geometry import GEOMETRIES, Geometry, find_geometry
from sluice.mps.mig.inventory import Gpu
from sluice.mps.mig.layout_file import LayoutFile


def plan_present_gpus(file: LayoutFile, there: Sequence[Gpu]) -> list[tuple[str, GpuPlan]]:
    """A plan for each GPU of the file, with its UUID, starting from its present state.

    Raises ConfigError where the file names a GPU that is missing, is of another model or has no MIG, and as `plan_gpu`.
    """
    plans: list[tuple[str, GpuPlan]] = []
    for index in range(len(file.gpus)):
        gpu, geometry = _find(file, index, there)
        if gpu.uuid in dict(plans):
            raise ConfigError(f"{file.path}: gpus.{index}.device: GPU {gpu.index} is listed twice")
        present = GpuState(bool(gpu.mig), gpu.present, gpu.users, gpu.unusable)
        plans.append((gpu.uuid, plan_gpu(file, index, geometry, present)))
    return plans


def plan_described_gpus(file: LayoutFile, present: LayoutFile | None = None) -> list[tuple[str, GpuPlan]]:
    """A plan for each GPU of the file, with its name, starting from its state in another file, or from an empty GPU.

    Raises ConfigError where neither file names the model of a GPU or they disagree, and as `plan_gpu`.
    """
    plans = []
    at = {} if present is None else {gpu.device: index for index, gpu in enumerate(present.gpus)}
    for index, wanted in enumerate(file.gpus):
        name, state = wanted.gpu, GpuState()
        if present is not None and wanted.device in at:
            there = at[wanted.device]
            model = present.gpus[there].gpu
            if None not in (name, model) and name != model:
                raise ConfigError(f"{file.path}: gpus.{index}.gpu: it is {model} in {present.path}, not {name}")
            name = name or model
            if name is not None:
                state = GpuState(present.gpus[there].mig, present.present(there, find_geometry(name)))
        if name is None:
            raise ConfigError(f"{file.path}: gpus.{index}: expected `gpu`, the model to plan for")
        plans.append((str(wanted.device), plan_gpu(file, index, find_geometry(name), state)))
    return plans


def _find(file: LayoutFile, index: int, there: Sequence[Gpu]) -> tuple[Gpu, Geometry]:
    """The GPU of an entry of the file."""
    device = file.gpus[index].device
    at = f"{file.path}: gpus.{index}.device"
    found = [gpu for gpu in there if gpu.is_named(device)]
    if len(found) != 1:
        names = ", ".join(f"{gpu.index} ({gpu.uuid or 'lost'})" for gpu in there) or "none"
        raise ConfigError(f"{at}: {device} names {len(found)} GPUs, expected one of {names}")
    (gpu,) = found
    if gpu.lost:
        raise ConfigError(f"{at}: GPU {gpu.index} is lost (NVML: {gpu.lost})")
    if gpu.mig is None:
        raise ConfigError(f"{at}: GPU {gpu.index}, {gpu.name}, has no MIG")
    if gpu.geometry is None or gpu.unplaced:
        raise ConfigError(f"{at}: the layout of GPU {gpu.index}, {gpu.name}, is readable by root only")
    model, known = file.gpus[index].gpu, GEOMETRIES.get(gpu.geometry.gpu)
    if model is not None and known is not None and find_geometry(model).profiles != known.profiles:
        raise ConfigError(f"{file.path}: gpus.{index}.gpu: GPU {gpu.index}, {gpu.name}, is {known.gpu}, not {model}")
    return gpu, gpu.geometry
