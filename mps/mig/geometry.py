"""MIG geometry of GPUs: the profiles of each, and the slices at which an instance of a profile may start.

The figures are those of NVIDIA's MIG user guide and of `nvidia-smi mig -lgip`; None stands where neither gives one. A
driver knows its own GPU better: these tables plan for a GPU that is not there.
"""

import re
from collections.abc import Iterable

import msgspec

from sluice.models.errors import ConfigError

_NAME = re.compile(r"(?P<slices>\d+)g(\.(?P<gb>\d+)gb)?(?P<attributes>[+-][a-z0-9.+-]+)?")
_MEDIA = "+me"
_MOST_SLICES = 7


class MigProfile(msgspec.Struct, frozen=True):
    """A size of GPU instances.

    `compute` and `memory` are slices of the GPU, `starts` the memory slices at which an instance may start. `id` is the
    driver's. `memory_mib` is the memory that programs can use; the nominal gigabytes are in the name.
    """

    name: str
    id: int
    compute: int
    memory: int
    starts: tuple[int, ...]
    multiprocessors: int | None = None
    memory_mib: int | None = None

    @property
    def media(self) -> bool:
        """Return whether it has the media engines, which a GPU gives to one instance only."""
        return _MEDIA in self.name

    @property
    def size(self) -> tuple[int, int, int]:
        """Compute slices, memory slices, multiprocessors: profiles are ordered by it, the largest first."""
        return self.compute, self.memory, self.multiprocessors or 0


class Geometry(msgspec.Struct, frozen=True):
    """The profiles of a GPU, the largest first, and its numbers of slices."""

    gpu: str
    compute: int
    memory: int
    profiles: tuple[MigProfile, ...]

    def find(self, name: str) -> MigProfile:
        """Return the profile of that name; raises ConfigError with the names of all profiles.

        `3g` is the plain profile of three slices with the least memory. Drivers disagree by a gigabyte about some names
        (`7g.79gb`, `7g.80gb`): both are found.
        """
        text = name.strip().lower().removeprefix("mig ")
        alike = [each for each in self.profiles if same_profile(each.name, text)]
        if alike and not _gigabytes(text):
            return min(alike, key=lambda profile: profile.memory)
        if alike:
            return min(alike, key=lambda profile: abs(_gigabytes(profile.name) - _gigabytes(text)))
        there = ", ".join(profile.name for profile in self.profiles)
        raise ConfigError(f"'{name}' is not a profile of {self.gpu}; expected one of {there}")


def same_profile(name: str, other: str) -> bool:
    """Return whether two names may mean one profile: drivers disagree by a gigabyte, and a name may have none."""
    one, two = _NAME.fullmatch(name), _NAME.fullmatch(other)
    if one is None or two is None or (one["slices"], one["attributes"]) != (two["slices"], two["attributes"]):
        return False
    return one["gb"] is None or two["gb"] is None or abs(int(one["gb"]) - int(two["gb"])) <= 1


def share_of_gpu(profile: str) -> float:
    """The part of a GPU's compute slices that an instance of a profile has; in sevenths for an unknown profile."""
    slices = int(profile.partition("g")[0])
    wholes = (table.compute for table in GEOMETRIES.values() if profile in {each.name for each in table.profiles})
    return slices / next(wholes, _MOST_SLICES)


def geometry_of(gpu: str, profiles: Iterable[MigProfile]) -> Geometry:
    """The geometry of a GPU whose largest profile is all of it."""
    ordered = tuple(sorted(profiles, key=lambda profile: (profile.size, not profile.media), reverse=True))
    memory = max(start + profile.memory for profile in ordered for start in profile.starts)
    return Geometry(gpu, max(profile.compute for profile in ordered), memory, ordered)


def find_geometry(gpu: str) -> Geometry:
    """Return the table of a GPU by its name here, such as H100-80; raises ConfigError with the known names."""
    for name, geometry in GEOMETRIES.items():
        if name.lower() == gpu.strip().lower():
            return geometry
    raise ConfigError(f"'{gpu}': unknown GPU; expected one of {', '.join(GEOMETRIES)}")


def _gigabytes(name: str) -> int:
    match = _NAME.fullmatch(name)
    return int(match["gb"]) if match is not None and match["gb"] else 0


_SHAPES = {
    "1g": (19, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    "1g+me": (20, 1, 1, (0, 1, 2, 3, 4, 5, 6)),
    "1g double": (15, 1, 2, (0, 2, 4, 6)),
    "2g": (14, 2, 2, (0, 2, 4)),
    "3g": (9, 3, 4, (0, 4)),
    "4g": (5, 4, 4, (0,)),
    "7g": (0, 7, 8, (0,)),
}
"""Id, compute slices, memory slices and starts of the profiles of GPUs with seven compute slices."""

_A30_SHAPES = {
    "1g": (14, 1, 1, (0, 1, 2, 3)),
    "1g+me": (21, 1, 1, (0, 1, 2, 3)),
    "2g": (5, 2, 2, (0, 2)),
    "2g+me": (6, 2, 2, (0, 2)),
    "4g": (0, 4, 4, (0,)),
}

_Figures = dict[str, tuple[int, int | None, int | None]]
"""By shape: nominal gigabytes, multiprocessors, usable MiB."""


def _table(gpu: str, figures: _Figures, shapes: dict[str, tuple[int, int, int, tuple[int, ...]]]) -> Geometry:
    """The profiles of a GPU; those with media engines are as large as those without."""
    profiles = []
    for shape, (gigabytes, multiprocessors, memory_mib) in figures.items():
        for attributes in ("", _MEDIA):
            if numbers := shapes.get(shape + attributes):
                name = f"{shape.partition(' ')[0]}.{gigabytes}gb{attributes}"
                profiles.append(MigProfile(name, *numbers, multiprocessors, memory_mib))
    return geometry_of(gpu, profiles)


GEOMETRIES = {
    "A30": _table("A30", {"1g": (6, 14, 5836), "2g": (12, 28, 11672), "4g": (24, 56, 23344)}, _A30_SHAPES),
    "A100-40": _table(
        "A100-40",
        {
            "1g": (5, 14, 4864),
            "1g double": (10, 14, 9856),
            "2g": (10, 28, 9856),
            "3g": (20, 42, 19968),
            "4g": (20, 56, 19968),
            "7g": (40, 98, 40192),
        },
        _SHAPES,
    ),
    "A100-80": _table(
        "A100-80",
        {
            "1g": (10, 14, 9856),
            "1g double": (20, 14, 19968),
            "2g": (20, 28, 19968),
            "3g": (40, 42, 40192),
            "4g": (40, 56, 40192),
            "7g": (80, 98, 80384),
        },
        _SHAPES,
    ),
    "H100-80": _table(
        "H100-80",
        {
            "1g": (10, 16, 9984),
            "1g double": (20, 26, 20096),
            "2g": (20, 32, 20096),
            "3g": (40, 60, 40448),
            "4g": (40, 64, 40448),
            "7g": (80, 132, 81152),
        },
        _SHAPES,
    ),
    "H100-94": _table(
        "H100-94",
        {
            "1g": (12, None, None),
            "1g double": (24, None, None),
            "2g": (24, None, None),
            "3g": (47, None, None),
            "4g": (47, None, None),
            "7g": (94, None, None),
        },
        _SHAPES,
    ),
    "H100-96": _table(
        "H100-96",
        {
            "1g": (12, None, None),
            "1g double": (24, None, None),
            "2g": (24, None, None),
            "3g": (48, None, None),
            "4g": (48, None, None),
            "7g": (96, None, None),
        },
        _SHAPES,
    ),
    "H200": _table(
        "H200",
        {
            "1g": (18, 16, 16384),
            "1g double": (35, 26, 33280),
            "2g": (35, 32, 33280),
            "3g": (71, 60, 71424),
            "4g": (71, 64, 71424),
            "7g": (141, 132, 143360),
        },
        _SHAPES,
    ),
    "B200": _table(
        "B200",
        {
            "1g": (23, None, 20992),
            "1g double": (45, None, None),
            "2g": (45, None, None),
            "3g": (90, None, None),
            "4g": (90, None, None),
            "7g": (180, None, None),
        },
        _SHAPES,
    ),
}
"""GPUs by name."""
