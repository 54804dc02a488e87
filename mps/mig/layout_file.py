"""The format of a file of GPU layouts, wanted or present; errors name the place in the file."""

import math
from typing import Any

import msgspec

from sluice.models.conversion import NO_LINES, convert
from sluice.models.errors import ConfigError, InfeasibleLayout
from sluice.models.spelling import did_you_mean
from sluice.models.yaml_file import Lines, load_yaml
from sluice.mps.mig.demand import DemandInstances, MigDemand, cover_demands
from sluice.mps.mig.geometry import GEOMETRIES, Geometry
from sluice.mps.mig.packer import WantedInstance
from sluice.mps.mig.placements import Placement, layout_problem, parse_placement

_MOST_OF_ONE = 8


class DemandFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A demand as written: requests a second, and the rate that an instance of each profile serves."""

    rate: float
    rates: dict[str, float]


class GpuLayout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A GPU as written. `device` is an index or a UUID; `gpu` names the table to plan with where no driver answers.

    `instances` are profiles with the number wanted of each, or a list of profiles and placements (`3g.40gb@4`);
    `demands` choose them instead. Without `mig` the GPU is whole. In a file of the present state, `users` are the
    processes on each instance.
    """

    device: int | str = 0
    gpu: str | None = None
    mig: bool = True
    instances: dict[str, int] | list[str] = []
    demands: dict[str, DemandFile] = {}
    users: dict[str, list[str]] = {}

    def __post_init__(self) -> None:
        if (self.instances or self.demands) and not self.mig:
            raise ValueError("a GPU with `mig: false` is whole: expected no `instances` and no `demands`")
        if self.instances and self.demands:
            raise ValueError("expected either `instances` or `demands`, which choose them")
        if isinstance(self.instances, dict):
            for name, count in self.instances.items():
                if not 1 <= count <= _MOST_OF_ONE:
                    raise ValueError(f"expected 1 to {_MOST_OF_ONE} of {name}, got {count}")
        for name, demand in self.demands.items():
            if not 0 < demand.rate < math.inf:
                raise ValueError(f"demands.{name}: expected a finite rate above 0, got {demand.rate:g}")
            if not demand.rates or not all(0 < rate < math.inf for rate in demand.rates.values()):
                raise ValueError(f"demands.{name}: expected finite rates above 0, of at least one profile")
        if self.gpu is not None and self.gpu not in GEOMETRIES:
            expected = f"expected one of {', '.join(GEOMETRIES)}{did_you_mean(self.gpu, GEOMETRIES)}"
            raise ValueError(f"gpu '{self.gpu}': unknown GPU; {expected}")


class LayoutFile(msgspec.Struct, frozen=True):
    """The GPUs of a file, in its order, and the path and the lines for errors about them."""

    path: str
    gpus: tuple[GpuLayout, ...]
    lines: Lines = NO_LINES

    def wanted(self, index: int, geometry: Geometry) -> list[WantedInstance]:
        """The `instances` of a GPU; raises ConfigError, with all profiles, for an unknown one."""
        instances = self.gpus[index].instances
        at = self.lines.place(self.path, f"gpus.{index}.instances")
        if isinstance(instances, dict):
            instances = [name for name, count in instances.items() for _ in range(count)]
        try:
            return [_wanted(geometry, text) for text in instances]
        except ConfigError as error:
            raise ConfigError(f"{at} {error}") from None

    def shares(self, index: int, geometry: Geometry) -> DemandInstances:
        """The instances that serve each demand; raises ConfigError, and InfeasibleLayout if one GPU is not enough."""
        demands, at = {}, f"gpus.{index}.demands"
        for name, demand in self.gpus[index].demands.items():
            try:
                rates = {geometry.find(profile): rate for profile, rate in demand.rates.items()}
            except ConfigError as error:
                raise self._error(f"{at}.{name}", str(error)) from None
            demands[name] = MigDemand(demand.rate, rates)
        try:
            return cover_demands(geometry, demands)
        except InfeasibleLayout as error:
            raise InfeasibleLayout(f"{self.lines.place(self.path, at)} {error}") from None

    def present(self, index: int, geometry: Geometry) -> dict[Placement, tuple[str, ...]]:
        """The instances of a GPU, all with their starts, and the users of each; raises ConfigError."""
        gpu = self.gpus[index]
        at = f"gpus.{index}"
        try:
            there = [parse_placement(geometry, text) for text in gpu.instances]
            users = {parse_placement(geometry, text): tuple(names) for text, names in gpu.users.items()}
        except ConfigError as error:
            raise self._error(at, str(error)) from None
        if unknown := [str(each) for each in users if each not in there]:
            raise self._error(f"{at}.users", f"{unknown[0]} is not one of the instances")
        if reason := layout_problem(geometry, there):
            raise self._error(at, f"instances: the layout is not possible: {reason}")
        return {each: users.get(each, ()) for each in there}

    def _error(self, at: str, what: str) -> ConfigError:
        return self.lines.error(self.path, at, what)


def decode_layouts(text: str, path: str) -> LayoutFile:
    """Decode the text of a file; raises ConfigError, whose message starts with `path` and the place."""
    value, lines = load_yaml(text, path)
    top = convert(value, LayoutKeys, path, lines=lines)
    gpus = tuple(convert(each, GpuLayout, path, f"gpus.{index}", lines=lines) for index, each in enumerate(top.gpus))
    if not gpus:
        raise ConfigError(f"{lines.place(path, 'gpus')} expected at least one GPU")
    seen: set[int | str] = set()
    for index, gpu in enumerate(gpus):
        if gpu.device in seen:
            raise ConfigError(f"{lines.place(path, f'gpus.{index}.device')} {gpu.device} is given twice")
        seen.add(gpu.device)
    return LayoutFile(path, gpus, lines)


class LayoutKeys(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a file."""

    gpus: list[Any]


def _wanted(geometry: Geometry, text: str) -> WantedInstance:
    if "@" in text:
        placement = parse_placement(geometry, text)
        return WantedInstance(placement.profile, placement.start)
    return WantedInstance(geometry.find(text))
