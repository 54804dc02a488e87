"""Remote partitions that Ray places: which cluster, what each takes of a node, and how many there are."""

import enum
import math
import re
from typing import Any

import msgspec

MAX_SLOTS = 1024
"""The most partitions of one class: every slot is a partition of the scheduler, placed or not."""

_MIG = re.compile(r"mig-([1-7]g([.+].+)?)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_GPU, _CPU = "GPU", "CPU"


class Strategy(enum.StrEnum):
    """Where Ray places the workers of a class: on many nodes, or on few."""

    SPREAD = "spread"
    PACK = "pack"


class RaySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workers that are placed by Ray. Needs the extra `ray`.

    `address` is the cluster's: `auto` (RAY_ADDRESS, else the cluster of this machine) or the host and port of its head.
    Gateways of the same `namespace` share the workers of a class. `resources` is what each worker takes of its node in
    Ray's words: `CPU` (whole cores), `GPU` (a part of one is a share under MPS), or a resource such as `mig-2g.20gb`
    (empty: a GPU where the cluster has any, else one core). `count` is the number of workers; with `min` and `max` it
    is the autoscaler's; without all three it is as many as the cluster has room for when the server starts. `nodes`
    are the nodes that may be used, by name, address or id (empty: all). Classes with the same `near` are placed
    together: worker number i of each on one node. `runtime_env` is passed to Ray. `cache` is the directory of models
    on the nodes and `cache_mb` its bound; `worker_options` are further options of `sluice worker`, as those of TLS.
    Workers that no gateway uses any more end after `keep_s`. When Ray's head is gone, workers go on for
    `without_head_s` at most, in which it may come back.
    """

    address: str = "auto"
    namespace: str = "sluice"
    nodes: tuple[str, ...] = ()
    count: int | None = None
    min: int | None = None
    max: int | None = None
    resources: dict[str, float] = {}
    strategy: Strategy = Strategy.SPREAD
    near: str | None = None
    runtime_env: dict[str, Any] = {}
    cache: str | None = None
    cache_mb: int | None = None
    worker_options: tuple[str, ...] = ()
    keep_s: float = 30.0
    without_head_s: float = 3600.0

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if self.address != "auto" and not (host and "/" not in host and port.isdecimal()):
            raise ValueError(f"address: expected auto, or a host and port such as 10.0.0.1:6379, got '{self.address}'")
        for key, name in (("namespace", self.namespace), ("near", self.near)):
            if name is not None and not _NAME.fullmatch(name):
                raise ValueError(f"{key}: expected letters, digits, '.', '_' and '-', got '{name}'")
        if not all(self.nodes) or len(set(self.nodes)) < len(self.nodes):
            raise ValueError("nodes: expected names of nodes, each once")
        self._check_counts()
        if self.resources:
            worker_kind(self.resources)
        if self.cache_mb is not None and self.cache_mb < 1:
            raise ValueError(f"cache_mb: expected at least 1, got {self.cache_mb}")
        for key, seconds in (("keep_s", self.keep_s), ("without_head_s", self.without_head_s)):
            if not 0 <= seconds < math.inf:
                raise ValueError(f"{key}: expected a finite time of at least 0, got {seconds:g}")

    @property
    def most(self) -> int | None:
        """The number of slots; None where it follows from the cluster."""
        return self.count if self.count is not None else self.max

    def _check_counts(self) -> None:
        if self.count is not None and (self.min is not None or self.max is not None):
            raise ValueError("count: expected either count, or min and max")
        if self.min is not None and self.max is None:
            raise ValueError("min: expected max as well")
        for key, number in (("count", self.count), ("max", self.max)):
            if number is not None and not 1 <= number <= MAX_SLOTS:
                raise ValueError(f"{key}: expected 1 to {MAX_SLOTS}, got {number}")
        if self.min is not None and self.max is not None and not 0 <= self.min <= self.max:
            raise ValueError(f"min: expected 0 to max, which is {self.max}, got {self.min}")


def worker_kind(resources: dict[str, float]) -> str:
    """The profile kind of a worker that takes these resources, for example `cpu2`, `mps-25` or `mig-2g.20gb`.

    Raises ValueError for resources that no kind of partition has.
    """
    for name, amount in resources.items():
        if not 0 < amount < math.inf:
            raise ValueError(f"resources: {name}: expected a finite amount above 0, got {amount:g}")
    instances = [name for name in resources if _MIG.fullmatch(name)]
    if len(instances) + (_GPU in resources) > 1:
        raise ValueError(f"resources: expected one device for a worker, got {', '.join(resources)}")
    for name in instances:
        if resources[name] != 1:
            raise ValueError(f"resources: {name}: expected 1, as a worker has one instance, got {resources[name]:g}")
    cores = resources.get(_CPU, 0)
    if cores != int(cores):
        raise ValueError(f"resources: CPU: expected whole cores, which no other worker uses, got {cores:g}")
    if instances:
        return instances[0]
    if _GPU in resources:
        percent = round(100 * resources[_GPU])
        if not 1 <= percent <= 100:
            raise ValueError(
                f"resources: GPU: expected a part from 0.01 to 1 of one GPU, as a worker has one device at most, "
                f"got {resources[_GPU]:g}"
            )
        return f"mps-{percent}"
    if not cores:
        raise ValueError(
            f"resources: expected CPU, GPU or a MIG instance such as mig-2g.20gb, got only {', '.join(resources)}"
        )
    return f"cpu{int(cores)}"
