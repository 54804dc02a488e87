"""A mix: the streams that share a run."""

import msgspec
import numpy as np

from sluice.loadgen.records.samples import SampleSource
from sluice.loadgen.traffic.shares import zipf_shares
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, Labels
from sluice.models.errors import ConfigError

MAX_STREAMS = 1024


class MixStream(msgspec.Struct, frozen=True, kw_only=True):
    """The queries of a run that go to one model or pipeline in one way.

    `share` is its part of the run's queries, relative to the other streams. `slo_ms` is the objective, and `priority`
    the level, that every query sends to the server, as it does the least accuracy of its models, `min_accuracy` (0:
    any), and the most that it may cost (None: whatever it takes). It may begin `start_after_ms` after it was sent, from
    when its objective counts.
    """

    name: str
    model: str
    share: float = 1.0
    slo_ms: float | None = None
    samples: SampleSource = SampleSource()
    rows: int = 1
    priority: int = 0
    min_accuracy: float = 0.0
    max_cost: float | None = None
    start_after_ms: float = 0.0


class Mix(msgspec.Struct, frozen=True):
    """The streams of a run, with different names; `source` is the file that they come from."""

    streams: tuple[MixStream, ...]
    source: str

    def __post_init__(self) -> None:
        if not 1 <= len(self.streams) <= MAX_STREAMS:
            raise ConfigError(f"{self.source}: expected 1 to {MAX_STREAMS} streams, got {len(self.streams)}")
        names = [stream.name for stream in self.streams]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ConfigError(f"{self.source}: two streams are called {min(twice)!r}; expected different names")


def with_zipf_shares(streams: tuple[MixStream, ...], exponent: float) -> tuple[MixStream, ...]:
    """The streams with shares that fall with their rank, as Zipf's law has it."""
    shares = zipf_shares(len(streams), exponent).tolist()
    return tuple(msgspec.structs.replace(stream, share=share) for stream, share in zip(streams, shares, strict=True))


def trace_streams(trace: ArrivalTrace) -> Labels | None:
    """The name of each arrival's stream: its model, its class, or `model/class`; None for a trace with neither."""
    model, query_class = trace.model, trace.query_class
    if model is None or query_class is None:
        return model or query_class
    classes = len(query_class.names)
    used, index = np.unique(model.index.astype(np.int64) * classes + query_class.index, return_inverse=True)
    pairs = [(model.names[each // classes], query_class.names[each % classes]) for each in used.tolist()]
    return Labels(tuple("/".join(part for part in pair if part) for pair in pairs), index.astype(np.int32))


def mix_of_trace(trace: ArrivalTrace, source: str, stream: MixStream) -> Mix:
    """A mix with a stream for each model, or model and class, of a trace; the rest of each is as in `stream`."""
    if trace.model is None:
        raise ConfigError(f"--trace: {source}: names no models; expected --model, --mix or a column model")
    labels = trace_streams(trace)
    assert labels is not None
    names = labels.names
    if not all(name.partition("/")[0] for name in names):
        raise ConfigError(f"--trace: {source}: some arrivals name no model; expected one in each row, or --model")
    if len(names) > MAX_STREAMS:
        raise ConfigError(
            f"--trace: {source}: names {len(names)} models; expected at most {MAX_STREAMS}: divide them among models "
            "with `loadgen trace convert --models`, or play all to one --model"
        )
    streams = [msgspec.structs.replace(stream, name=name, model=name.partition("/")[0]) for name in names]
    return Mix(tuple(streams), source)
