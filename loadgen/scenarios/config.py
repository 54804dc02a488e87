"""The configuration of a run."""

import enum

import msgspec

from sluice.loadgen.mixes.mix import Mix, MixStream
from sluice.loadgen.records.outputs import KeptOutputs
from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.target.base import MAX_OUTSTANDING
from sluice.loadgen.traffic.arrivals import Arrivals
from sluice.loadgen.traffic.draws import Cancellation, DeadlineSpread
from sluice.loadgen.traffic.mlperf_schedule import MlperfRules, MlperfSeeds
from sluice.models.client_tls import NO_TLS, ClientTls

PERCENTILE = 99.0
WARMUP_S = 1.0


class ScenarioName(enum.StrEnum):
    """Name of a scenario, as `--scenario` takes it."""

    SERVER = "server"
    OFFLINE = "offline"
    SINGLE_STREAM = "single-stream"
    MULTI_STREAM = "multi-stream"
    CONCURRENCY = "concurrency"
    JOBS = "jobs"


class RunConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    `target` is `http://host:port`, `https://…`, `grpc://…`, `grpcs://…` or `sim:FILE`, and gets the `headers` with
    every query; `model` names a model or a pipeline. The run ends after `duration_s` or `queries`, whichever comes
    first. Where `min_duration_s` or `min_queries` is given it ends earlier, as soon as both are reached. With
    `each_once` every sample is sent once. `rate`, `concurrency` and `samples_per_query` are 0 and None for scenarios
    that do not take them; None also stands for a scenario's own number. `percentile` is the share of queries, in %,
    that has to meet `slo_ms`. `output` names the output to compare with the labels, by default the model's first: class
    numbers, or scores whose largest gives the class. With `decide_from_s` the run ends once its verdict is known: that
    it misses at any time, that it meets the objective from that many seconds on. `procs` client processes share the
    queries, the connections and the bound of outstanding queries. `mlperf` counts where the arrivals are MLPerf's,
    apart from its `min_queries` where the run has its own, and its `samples_per_query`.

    `explain_share` is the share of queries that ask the server for their times by stage, and `price_per_hour` what the
    server costs, for the cost of good answers.

    A `mix` takes the place of `model`, `slo_ms`, `samples` and `rows`. `deadline_spread` takes that of the objectives.
    The objectives that a trace has are multiplied by `trace_slo_scale`. `schedule_file` is a schedule to play.
    The settings of a server in `policy_file` replace those of a simulated target, whose random times have the seed
    `service_seed`, by default `seed`. `kept_outputs` says which outputs of a live target the result has. With a `path`
    the target does not speak V2: the samples are the files at `bodies`, which are posted there as they are.
    """

    target: str
    model: str
    rate: float = 0.0
    scenario: ScenarioName = ScenarioName.SERVER
    duration_s: float | None = None
    queries: int | None = None
    min_duration_s: float | None = None
    min_queries: int | None = None
    concurrency: int | None = None
    samples_per_query: int | None = None
    slo_ms: float | None = None
    percentile: float = PERCENTILE
    seed: int = 0
    service_seed: int | None = None
    samples: SampleSource = SampleSource()
    output: str = ""
    rows: int = 1
    each_once: bool = False
    warmup_s: float = WARMUP_S
    drain_timeout_s: float = 10.0
    connections: int = 256
    max_outstanding: int = MAX_OUTSTANDING
    procs: int = 1
    metrics_url: str = ""
    explain_share: float = 0.01
    price_per_hour: float | None = None
    arrivals: Arrivals = Arrivals()
    mix: Mix | None = None
    cancellation: Cancellation | None = None
    deadline_spread: DeadlineSpread | None = None
    trace_slo_scale: float = 1.0
    schedule_file: str = ""
    path: str = ""
    bodies: str = ""
    mlperf: MlperfRules = MlperfRules()
    headers: tuple[tuple[str, str], ...] = ()
    tls: ClientTls = NO_TLS
    decide_from_s: float | None = None
    policy_file: str = ""
    kept_outputs: KeptOutputs | None = None

    @property
    def random_times_seed(self) -> int:
        """The seed of a simulation's random times."""
        return self.seed if self.service_seed is None else self.service_seed

    @property
    def mlperf_seeds(self) -> MlperfSeeds:
        """The seeds of LoadGen's queries: `seed` is added to each, so that fresh seeds make fresh queries."""
        return self.mlperf.seeds.shifted(self.seed)

    @property
    def streams(self) -> tuple[MixStream, ...]:
        """The streams of the mix; without one, the one stream of all queries."""
        if self.mix is not None:
            return self.mix.streams
        own = MixStream(name=self.model, model=self.model, slo_ms=self.slo_ms, samples=self.samples, rows=self.rows)
        return (own,)
