"""Residency settings: which models are loaded when, which are evicted for them, and what each takes where."""

import enum

import msgspec

from sluice.models.profiles.latency_table import LatencyTable
from sluice.models.units import NS_PER_MS, NS_PER_S
from sluice.mps.packing.policies import AnyPolicy


class Loading(enum.StrEnum):
    """The reason for which models are loaded while a scheduler runs."""

    PLAN = "plan"
    """A plan says which partitions hold which models; a request for one that none holds is refused."""
    DEMAND = "demand"
    """A request for a model that no partition holds has it loaded, if that is in time for the request."""


class Eviction(enum.StrEnum):
    """Which models make room for one that is loaded on demand."""

    LRU = "lru"
    """Of those that may go the least important ones, and of these the one whose last batch is longest ago."""
    NONE = "none"
    """None: once memory is full, what is not held is refused."""


class Prewarm(enum.StrEnum):
    """When the models of later stages are loaded that no partition holds."""

    OFF = "off"
    """When rows come to the stage."""
    JIT = "jit"
    """So that they are there when the stages before are predicted to end."""
    SPECULATIVE = "speculative"
    """As soon as the request is admitted."""


class Likelihood(enum.StrEnum):
    """The rule that finds the most likely path through the branches of a pipeline."""

    PRODUCT = "product"
    """It is the one whose branches have the largest product of probabilities."""
    GREEDY = "greedy"
    """It takes the most likely branch each time, which may end in an unlikely path."""


class OnMiss(enum.StrEnum):
    """The rule for prewarming once a request has left the most likely path."""

    REPLAN = "replan"
    """The most likely path from there is found, and its models are prewarmed."""
    STOP = "stop"
    """Nothing more is prewarmed for the request: later stages are loaded when rows come to them."""


class ResidencyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules by which models are loaded and evicted; they matter with `Loading.DEMAND` only, except `packing`.

    The policy of `packing` decides which partitions may hold a model beside others, within their memory (None: all).
    A model that was loaded stays until it has run a batch or `min_resident_ns` are over. A partition has at most
    `loads` orders to load at a time. `load_ns` is how long a load is taken to be that nothing is known of. Later stages
    are prewarmed that lie on the most likely path and are reached with at least `min_probability`; `on_miss` says what
    happens when a request takes another path.
    """

    loading: Loading = Loading.PLAN
    eviction: Eviction = Eviction.LRU
    min_resident_ns: int = 100 * NS_PER_MS
    loads: int = 4
    load_ns: int = NS_PER_S
    prewarm: Prewarm = Prewarm.JIT
    path: Likelihood = Likelihood.PRODUCT
    min_probability: float = 0.0
    packing: AnyPolicy | None = None
    on_miss: OnMiss = OnMiss.REPLAN


class Footprint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory and load time of a model on one kind of partition, as far as they were measured.

    In batches of b rows it takes `rest_bytes + b * row_bytes`, and `load_ns` to be loaded (0: not known). `table` is
    how fast it is there (None: known once it is loaded).
    """

    rest_bytes: int
    row_bytes: int = 0
    load_ns: int = 0
    table: LatencyTable | None = None

    def memory_bytes(self, rows: int) -> int:
        """Memory of the model in batches of that many rows."""
        return self.rest_bytes + rows * self.row_bytes
