"""Jobs: engines that each have a batch of queries to run, launched at intervals."""

import numpy as np

from sluice.loadgen.records.record import Record
from sluice.loadgen.scenarios.base import Figure, Score
from sluice.loadgen.scenarios.bounds import unmet_minima
from sluice.loadgen.scenarios.config import RunConfig
from sluice.loadgen.scenarios.open_loop import arrival_times
from sluice.loadgen.scenarios.queries import MeasuredQueries, mean_ms, percentile_ms
from sluice.loadgen.scenarios.sample_choice import choose_samples
from sluice.loadgen.traffic.pacing import OPEN_LOOP, Pacing
from sluice.loadgen.traffic.schedule import Schedule

_SAMPLES_PER_QUERY = 64


class Jobs:
    """An open loop of jobs, each with all its queries there when it is launched, as in the Offline scenario.

    The rate is that of the jobs. The time of a job is from its launch to the answer of its last query.
    """

    takes = frozenset({"rate", "samples_per_query"})
    is_paced = False

    def schedule(self, config: RunConfig, samples: int) -> Schedule:
        """Successive samples from one drawn uniformly on for each job, or each once, in random order."""
        group = config.samples_per_query or _SAMPLES_PER_QUERY
        due_ns = arrival_times(config, -(-samples // group) if config.each_once else None, group)
        return Schedule(np.repeat(due_ns, group), choose_samples(config, samples, len(due_ns), group), group=group)

    def pacing(self, config: RunConfig, schedule: Schedule) -> Pacing:
        """An open loop."""
        return OPEN_LOOP

    def score(self, record: Record, config: RunConfig) -> Score:
        """The time of a job, and how long it is pending: until the first of its queries is answered."""
        group = config.samples_per_query or _SAMPLES_PER_QUERY
        jobs = MeasuredQueries(record, config.warmup_s, group)
        percentile = config.percentile
        return Score(
            figures=(
                Figure(f"time of a job p{percentile:g}", percentile_ms(jobs.latency_ns, percentile), "ms"),
                Figure("mean time of a job", mean_ms(jobs.latency_ns), "ms"),
                Figure("mean pending time", mean_ms(jobs.first_ns), "ms"),
                Figure(f"pending time p{percentile:g}", percentile_ms(jobs.first_ns, percentile), "ms"),
                Figure("completed jobs", jobs.completed_per_s, "/s"),
            ),
            queries=len(jobs),
            good=int(jobs.good.sum()),
            is_sample=record.has_objectives and not config.each_once,
            unmet=unmet_minima(record, config, group, int(record.due_ns[-1]) if len(record) else 0),
        )
