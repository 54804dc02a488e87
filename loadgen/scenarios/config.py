"""The configuration of a run."""

import enum

import msgspec

from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.target.base import MAX_OUTSTANDING
from sluice.loadgen.traffic.arrivals import Arrivals
from sluice.models.client_tls import NO_TLS, ClientTls


class ScenarioName(enum.StrEnum):
    """Name of a scenario, as `--scenario` takes it."""

    SERVER = "server"


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    `target` is `http://host:port`, `https://…`, `grpc://…`, `grpcs://…` or `sim:FILE`, and gets the `headers` with
    every query; `model` names a model or a pipeline. The run ends after `duration_s` or `queries`, whichever comes
    first; with `each_once` every sample is sent once. `percentile` is the share of queries, in %, that has to meet
    `slo_ms`. `output` names the output to compare with the labels, by default the model's first: class numbers, or
    scores whose largest gives the class. `explain_share` is the share of queries that ask the server for their times by
    stage, and `price_per_hour` what the server costs, for the cost of good answers.
    """

    target: str
    model: str
    rate: float
    scenario: ScenarioName = ScenarioName.SERVER
    duration_s: float | None = None
    queries: int | None = None
    slo_ms: float | None = None
    percentile: float = 99.0
    seed: int = 0
    samples: SampleSource = SampleSource()
    output: str = ""
    rows: int = 1
    each_once: bool = False
    warmup_s: float = 1.0
    drain_timeout_s: float = 10.0
    connections: int = 256
    max_outstanding: int = MAX_OUTSTANDING
    metrics_url: str = ""
    explain_share: float = 0.01
    price_per_hour: float | None = None
    arrivals: Arrivals = Arrivals()
    headers: tuple[tuple[str, str], ...] = ()
    tls: ClientTls = NO_TLS
