"""The state of the overview between two ticks: the samples, the pipelines that are served, and the time."""

from heapq import nsmallest
from itertools import islice

from sluice.batcher.state import PipelineState
from sluice.gateway.overview.counters import Recorder
from sluice.gateway.overview.history import HISTORY_STEPS
from sluice.gateway.overview.pieces import Slices
from sluice.gateway.overview.shape import public_name
from sluice.gateway.overview.sources import Sources
from sluice.gateway.overview.timeline import Timeline
from sluice.models.pipelines.pipeline import Pipeline
from sluice.models.spec import public_key
from sluice.models.units import NS_PER_S

MAX_PIPELINES = 50
"""Pipelines that are listed."""
MAX_CHOSEN = 16
"""Pipelines whose models are sampled, since somebody looks at them or has just done so."""
MOST_BARS, LEAST_BARS = 240, 96
"""Bars of a step: fewer where many pipelines are listed."""

_COMPARED = 4 * MAX_PIPELINES
"""Pipelines that are compared at a time, to find the busiest."""


class Sampled:
    """The samples of a server, one at the end of each second of the time of day. `step` is the number of that second.

    Pipelines go by their public names, `name:version`. `listed` are those with most requests in the window, the others
    after them.
    """

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.recorder = Recorder(sources.meters)
        self.timeline = Timeline(MOST_BARS)
        self.first_step = self.step = 0
        self.served: dict[str, Pipeline] = {}
        self.listed: list[str] = []
        self.chosen: dict[str, int] = {}
        """The step in which somebody looked last, by pipeline; the latest come last."""
        self._offset_ns = 0
        self._served_of: object = None
        self._order: list[str] = []

    def begin(self, now_ns: int, day_ns: int) -> Slices:
        """Take the counters that the first step is compared with; `day_ns` is the time of day."""
        self.first_step = self.step = day_ns // NS_PER_S
        self._offset_ns = day_ns - now_ns
        self._find_served()
        yield from self.recorder.begin(self.step, now_ns)
        yield from self._find_listed()

    def tick(self, now_ns: int, day_ns: int) -> Slices:
        """Take the counters at the end of the step that contains a time of day."""
        self.step = max(day_ns // NS_PER_S, self.step + 1)
        self._find_served()
        self.chosen = {name: step for name, step in self.chosen.items() if self.step - step < HISTORY_STEPS}
        models = {key for name in self.chosen for key in self._models(name)}
        self.timeline.limit = max(MOST_BARS - 4 * min(len(self._order), MAX_PIPELINES), LEAST_BARS)
        self.timeline.end_step()
        yield from self.recorder.sample(self.step, now_ns, self.chosen, models)
        yield from self._find_listed()

    def choose(self, name: str) -> None:
        """Record that somebody looks at a pipeline."""
        if self.chosen.pop(name, None) is None:
            self.recorder.watch_models(self._models(name))
        self.chosen[name] = self.step
        if len(self.chosen) > MAX_CHOSEN:
            del self.chosen[next(iter(self.chosen))]

    def drifted(self, now_ns: int, day_ns: int) -> bool:
        """True if the time of day has moved against the clock, as when the machine has slept: steps would be wrong."""
        return abs(day_ns - now_ns - self._offset_ns) > NS_PER_S // 2

    def day_s(self, time_ns: int, digits: int = 3) -> float:
        """A time of the clock as the time of day."""
        return round((time_ns + self._offset_ns) / NS_PER_S, digits)

    def state(self, pipeline: Pipeline) -> PipelineState | None:
        """A pipeline as the scheduler has it; None for one that it does not know yet."""
        return self.sources.scheduler.pipelines.get(pipeline.key)

    def _models(self, name: str) -> list[str]:
        """The public keys of the models of a pipeline; none if it is not served any more."""
        pipeline = self.served.get(name)
        stages = () if pipeline is None else pipeline.stages
        return [public_key(key) for stage in stages for key in stage.models]

    def _find_served(self) -> None:
        serving = self.sources.registry.serving
        if serving is not self._served_of:
            self._served_of = serving
            self.served = {public_name(pipeline): pipeline for pipeline in serving.values()}
            self._order = sorted(self.served, key=lambda name: (len(self.served[name].stages) < 2, name))

    def _find_listed(self) -> Slices:
        served = self.served
        active: list[tuple[int, str]] = []
        for name, track in self.recorder.tracks.items():
            if track.window and name in served:
                active.append((-track.window.requests, name))
                if len(active) >= _COMPARED:
                    active = nsmallest(MAX_PIPELINES, active)
            yield
        busiest = [name for _, name in nsmallest(MAX_PIPELINES, active)]
        yield
        shown = set(busiest)
        idle = (name for name in self._order if name not in shown)
        self.listed = [*busiest, *islice(idle, MAX_PIPELINES - len(busiest))]
