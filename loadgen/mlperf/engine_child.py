"""The child process of `loadgen mlperf`: LoadGen in the main thread, the target's event loop in another.

LoadGen waits for ever for an answer that does not come, and may crash where a Python process ends as usual. So this
process watches the open queries, and leaves without cleaning up.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import mlperf_loadgen
import numpy as np
import uvloop

from sluice.loadgen.mlperf.engine import ENDED, EngineTask
from sluice.loadgen.mlperf.settings import NAMES
from sluice.loadgen.records.record import Status
from sluice.loadgen.records.samples import load_samples
from sluice.loadgen.run.child import REFUSED, UNREACHABLE, beat, say, take_task
from sluice.loadgen.run.live import open_live, read_metadata
from sluice.loadgen.scenarios.config import ScenarioName
from sluice.loadgen.scenarios.offline import OFFLINE_CONCURRENCY
from sluice.loadgen.target.base import Target, TargetRequest, TargetUnreachable
from sluice.loadgen.traffic.mlperf_schedule import SampleChoice
from sluice.models.errors import ServingError
from sluice.models.units import NS_PER_S, ms_to_ns

_WATCH_S = 0.25
_IDLE_S = 60.0
"""Most time that LoadGen may take to make its queries, or its log files."""
_LONGEST_GAP = 30
"""A gap of a Poisson process is never this many times the mean one: the chance is 1 in 10**13."""


class _System:
    """LoadGen's system under test, and the listener of the target that it stands for."""

    def __init__(self, task: EngineTask, loop: asyncio.AbstractEventLoop) -> None:
        config = task.config
        self._config = config
        self._keeps_answers = config.each_once or task.sampled is not None
        self._loop = loop
        self._ids: list[int] = []
        self._waiting: deque[tuple[int, int]] = deque()
        self._open: dict[int, int] = {}
        self._feeding = False
        self._heard_ns = time.monotonic_ns()
        offline = config.scenario is ScenarioName.OFFLINE
        self._most = (config.concurrency or OFFLINE_CONCURRENCY) if offline else config.max_outstanding
        gap_s = _LONGEST_GAP / config.rate if config.scenario is ScenarioName.SERVER else 0.0
        self._idle_ns = (_IDLE_S + gap_s) * NS_PER_S
        self.samples = 0

    async def prepare(self) -> None:
        """Connect to the target, with the requests of all samples."""
        config = self._config
        self._target: Target = open_live(config)
        (metadata,) = await read_metadata(config, self._target)
        samples = load_samples(config.samples, metadata, config.rows, config.seed)
        self._output = config.output or metadata.outputs[0].name
        self.samples = len(samples)
        # The target is not given the objective: it might refuse what it cannot answer in time.
        requests = {k: TargetRequest(config.model, samples.tensors(k)) for k in range(self.samples)}
        await self._target.prepare(requests, self, self._keeps_answers)
        self._watching = self._loop.create_task(self._watch())
        self._beating = self._loop.create_task(beat())

    def issue(self, ids: Sequence[int], samples: Sequence[int]) -> None:
        """Take the samples of a query; LoadGen's callback, from its thread."""
        self._loop.call_soon_threadsafe(self._take, ids, samples)

    def queued(self, query: int) -> None:
        """Do nothing: LoadGen does not tell a wait for a connection from the rest."""

    def sent(self, query: int) -> None:
        """Do nothing: LoadGen counts from its own time."""

    def done(self, query: int, status: Status, answer: object = None, reason: str = "", stages: str = "") -> None:
        """Tell LoadGen of an answer; anything else than an answer ends the run."""
        del self._open[query]
        self._heard_ns = time.monotonic_ns()
        if status != Status.OK:
            leave(f"query {query} has no answer ({status.name.lower()}: {reason}), and LoadGen knows answers only")
        address = size = 0
        if answer is not None:
            data = np.frombuffer(np.ascontiguousarray(self._target.decode(answer, self._output)).tobytes(), np.uint8)
            address, size = data.ctypes.data, data.size
        response = mlperf_loadgen.QuerySampleResponse(self._ids[query], address, size)
        mlperf_loadgen.QuerySamplesComplete([response])
        self._feed()

    def _take(self, ids: Sequence[int], samples: Sequence[int]) -> None:
        first = len(self._ids)
        self._ids += ids
        self._waiting += zip(range(first, len(self._ids)), samples, strict=True)
        self._feed()

    def _feed(self) -> None:
        """Issue queries as far as the target takes them: LoadGen's Offline query has all samples at once."""
        if self._feeding:  # an answer came at once, in the loop below
            return
        self._feeding = True
        while self._waiting and len(self._open) < self._most:
            query, sample = self._waiting.popleft()
            self._open[query] = self._heard_ns = time.monotonic_ns()
            try:
                self._target.issue(query, sample)
            except Exception as error:
                leave(f"query {query} cannot be sent: {error!r}")
        self._feeding = False

    async def _watch(self) -> NoReturn:
        limit_s = self._config.drain_timeout_s
        while True:
            await asyncio.sleep(_WATCH_S)
            now_ns = time.monotonic_ns()
            if self._open:
                query, since_ns = next(iter(self._open.items()))
                if now_ns - since_ns > limit_s * NS_PER_S:
                    leave(f"query {query} had no answer for {limit_s:g} s; LoadGen would wait for ever")
            elif now_ns - self._heard_ns > self._idle_ns:
                leave(f"LoadGen has sent nothing for {self._idle_ns / NS_PER_S:g} s, and has not ended")


def leave(failure: str = "") -> NoReturn:
    """End this process at once; `failure` is a sentence."""
    say(ENDED + failure.encode())
    os._exit(0)


def _settings(task: EngineTask) -> Any:
    """LoadGen's settings of a task."""
    config, rules = task.config, task.config.mlperf
    settings = mlperf_loadgen.TestSettings()
    settings.scenario = getattr(mlperf_loadgen.TestScenario, NAMES[config.scenario])
    modes = mlperf_loadgen.TestMode
    settings.mode = modes.AccuracyOnly if config.each_once else modes.PerformanceOnly
    settings.qsl_rng_seed = config.mlperf_seeds.qsl
    settings.sample_index_rng_seed = config.mlperf_seeds.sample_index
    settings.schedule_rng_seed = config.mlperf_seeds.schedule
    settings.performance_sample_count_override = rules.set_size
    settings.accuracy_sample_count_override = rules.accuracy_samples
    if task.sampled is not None:
        settings.accuracy_log_rng_seed = task.sampled.seed
        settings.accuracy_log_probability = task.sampled.share
    settings.performance_issue_unique = rules.choice is SampleChoice.UNIQUE
    settings.performance_issue_same = rules.choice is SampleChoice.SAME
    settings.performance_issue_same_index = rules.place
    settings.sample_concatenate_permutation = rules.choice is SampleChoice.PERMUTATIONS
    if config.min_duration_s is not None:
        settings.min_duration_ms = round(config.min_duration_s * 1000)
    settings.max_duration_ms = 0 if config.duration_s is None else round(config.duration_s * 1000)
    settings.min_query_count = rules.min_queries if config.min_queries is None else config.min_queries
    settings.max_query_count = config.queries or 0
    percentile = config.percentile / 100
    expected_ns = ms_to_ns(task.expected_latency_ms)
    match config.scenario:
        case ScenarioName.SERVER:
            settings.server_target_qps = config.rate
            settings.server_target_latency_percentile = percentile
            if config.slo_ms is not None:
                settings.server_target_latency_ns = ms_to_ns(config.slo_ms)
        case ScenarioName.OFFLINE:
            settings.offline_expected_qps = task.expected_rate
        case ScenarioName.SINGLE_STREAM:
            settings.single_stream_target_latency_percentile = percentile
            settings.single_stream_expected_latency_ns = expected_ns
        case _:
            settings.multi_stream_target_latency_percentile = percentile
            settings.multi_stream_expected_latency_ns = expected_ns
            if config.samples_per_query is not None:
                settings.multi_stream_samples_per_query = config.samples_per_query
    return settings


def _start_test(task: EngineTask, system: _System) -> None:
    """Run LoadGen's test in this thread."""
    log = mlperf_loadgen.LogSettings()
    log.enable_trace = False
    log.log_output.outdir = str(task.folder)
    log.log_output.copy_summary_to_stdout = False
    target = mlperf_loadgen.ConstructFastSUT(system.issue, _nothing)
    library = mlperf_loadgen.ConstructQSL(system.samples, system.samples, _nothing, _nothing)
    mlperf_loadgen.StartTestWithLogSettings(target, library, _settings(task), log, "")


def _nothing(*_: object) -> None:
    """All samples are prepared before the test, and no query is held back."""


def _main() -> NoReturn:
    task = cast(EngineTask, take_task())
    loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    system = _System(task, loop)
    try:
        asyncio.run_coroutine_threadsafe(system.prepare(), loop).result()
    except TargetUnreachable as error:
        say(UNREACHABLE + str(error).encode())
        os._exit(0)
    except (ServingError, OSError) as error:
        say(REFUSED + str(error).encode())
        os._exit(0)
    try:
        _start_test(task, system)
    except BaseException as error:
        leave(f"LoadGen raised {error!r}")
    leave()


if __name__ == "__main__":
    _main()
