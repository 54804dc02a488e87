"""The plan of a run: its schedule, how that is paced, and the requests that it names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.loadgen.mixes.mix import MixStream
from sluice.loadgen.mixes.requests import OWN_OBJECTIVE, RequestTable, assign
from sluice.loadgen.records.bodies import read_bodies
from sluice.loadgen.records.interim import InterimTest
from sluice.loadgen.records.samples import Samples, SampleSource, TargetModel, load_samples
from sluice.loadgen.run.memory import check_memory
from sluice.loadgen.scenarios.config import RunConfig, ScenarioName
from sluice.loadgen.scenarios.table import scenario_of
from sluice.loadgen.target.base import TargetRequest
from sluice.loadgen.traffic.arrivals import ArrivalProcess, Arrivals
from sluice.loadgen.traffic.draws import Numbers
from sluice.loadgen.traffic.pacing import Pacing
from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.traffic.schedule_file import read_schedule
from sluice.loadgen.traffic.traces.formats.found import open_trace
from sluice.models.errors import ConfigError
from sluice.models.units import NS_PER_S

_LONGEST_S = 31 * 24 * 3600


@dataclass(frozen=True)
class RunPlan:
    """A run as it was fixed before its start.

    `table` is what the run may send, and `requests` has what its schedule does send, by the numbers there. `outputs`
    names the output of each stream to compare with the labels, if there are any.
    """

    schedule: Schedule
    pacing: Pacing
    table: RequestTable
    requests: Mapping[int, TargetRequest]
    outputs: tuple[str, ...]

    @property
    def slo_ns(self) -> Numbers:
        """The objective of each query, as values of `Record.slo_ns`."""
        return self.table.slo_ns(self.schedule.sample)


def make_plan(config: RunConfig, metadata: Sequence[TargetModel]) -> RunPlan:
    """Fix a run on streams with this metadata; the same arguments give the same plan.

    Raises `ConfigError` for a run that cannot be made.
    """
    streams = config.streams
    samples = [_samples(config, stream, each) for stream, each in zip(streams, metadata, strict=True)]
    table, schedule = (_played if config.schedule_file else _drawn)(config, samples)
    check_memory(len(schedule))
    pacing = scenario_of(config).pacing(config, schedule)
    if pacing.outstanding is not None and not config.drain_timeout_s:
        raise ConfigError(f"--drain-timeout: {config.scenario} waits for answers; expected more than 0 s")
    last_s = int(schedule.due_ns[-1]) / NS_PER_S
    if last_s > _LONGEST_S:
        raise ConfigError(
            f"schedule: lasts {last_s:.0f} s; expected at most {_LONGEST_S} s, for which its time series has room"
        )
    if last_s < config.warmup_s and not pacing.from_issue:
        raise nothing_measured(f"the time of the last query ({last_s:g} s)", config.warmup_s)
    outputs = tuple(_compared(config.output, each) for each in metadata)
    return RunPlan(schedule, pacing, table, table.requests(schedule.sample), outputs)


def _drawn(config: RunConfig, samples: Sequence[Samples]) -> tuple[RequestTable, Schedule]:
    """The schedule of the scenario, with the streams, objectives and cancellations that the seed draws."""
    if config.each_once and len(samples) > 1:
        raise ConfigError(f"--each-once: requires one model, got a mix of {len(samples)} streams")
    arrivals = config.arrivals
    if not config.rate and arrivals != Arrivals() and arrivals.process is not ArrivalProcess.MLPERF:
        raise ConfigError(
            f"--arrivals {arrivals.process}: requires --rate, and a scenario that takes one; got {config.scenario}"
        )
    schedule = scenario_of(config).schedule(config, len(samples[0]))
    return assign(
        schedule,
        config.streams,
        samples,
        trace=open_trace(arrivals.trace) if arrivals.process is ArrivalProcess.TRACE else None,
        trace_slo_scale=config.trace_slo_scale,
        spread=config.deadline_spread,
        cancellation=config.cancellation,
        seed=config.seed,
    )


def _played(config: RunConfig, samples: Sequence[Samples]) -> tuple[RequestTable, Schedule]:
    """The schedule of a file, which has to be one of these streams and samples."""
    if config.scenario is not ScenarioName.SERVER:
        raise ConfigError(f"--schedule: requires --scenario {ScenarioName.SERVER}, got {config.scenario}")
    schedule = read_schedule(config.schedule_file)
    spread = config.deadline_spread
    table = RequestTable(config.streams, samples, OWN_OBJECTIVE if spread is None else spread.levels_ms)
    if int(schedule.sample.max()) >= len(table):
        raise ConfigError(
            f"--schedule {config.schedule_file}: carries request {schedule.sample.max()}; expected one of the "
            f"{len(table)} that the samples give"
        )
    if not np.array_equal(table.stream_of(schedule.sample), schedule.stream):
        raise ConfigError(f"--schedule {config.schedule_file}: made for another mix, or other numbers of samples")
    return table, schedule


def interim_test(config: RunConfig, plan: RunPlan) -> InterimTest | None:
    """The test that may end the run early, where the configuration asks for it."""
    if config.decide_from_s is None:
        return None
    return InterimTest(
        plan.schedule.due_ns,
        int(plan.slo_ns.max()),
        percentile=config.percentile,
        warmup_s=config.warmup_s,
        decide_from_s=config.decide_from_s,
    )


def _samples(config: RunConfig, stream: MixStream, metadata: TargetModel) -> Samples:
    if bool(config.path) != bool(config.bodies):
        raise ConfigError(f"--path and --bodies: expected both or none, got {config.path!r} and {config.bodies!r}")
    if not config.path:
        return load_samples(stream.samples, metadata, stream.rows, config.seed)
    if config.mix is not None or stream.samples != SampleSource() or stream.rows != 1:
        raise ConfigError("--bodies: a body is a whole sample; expected no --mix, no --samples and no --rows")
    return read_bodies(config.bodies)


def _compared(output: str, metadata: TargetModel) -> str:
    names = [spec.name for spec in metadata.outputs]
    if output and output not in names:
        raise ConfigError(f"--output {output}: the model has no such output; it has {', '.join(names)}")
    return output or names[0]


def nothing_measured(limit: str, warmup_s: float) -> ConfigError:
    """The error of a warm-up that leaves no query to measure."""
    return ConfigError(f"--warmup: leaves no query to measure; expected less than {limit}, got {warmup_s:g} s")
