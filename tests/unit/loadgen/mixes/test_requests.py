from collections.abc import Sequence

import numpy as np
import pytest

from sluice.loadgen.mixes import requests
from sluice.loadgen.mixes.mix import MixStream, mix_of_trace
from sluice.loadgen.mixes.requests import RequestTable, assign
from sluice.loadgen.records.samples import Samples
from sluice.loadgen.traffic.draws import Cancellation, DeadlineSpread
from sluice.loadgen.traffic.schedule import Schedule
from sluice.loadgen.traffic.traces.trace import ArrivalTrace, Labels
from sluice.models.errors import ConfigError

MS = 1_000_000
QUERIES = 40_000


def stream(name: str, share: float = 1, slo_ms: float | None = None, priority: int = 0) -> MixStream:
    return MixStream(name=name, model=f"model-{name}", share=share, slo_ms=slo_ms, priority=priority)


def samples(rows: int, first: int = 0, rows_per_query: int = 1, labelled: bool = False) -> Samples:
    values = np.arange(first, first + rows, dtype=np.float32)
    return Samples({"x": values}, values.astype(np.int64) if labelled else None, rows_per_query, batched=True)


def plain(queries: int = QUERIES, size: int = 10, group: int = 1) -> Schedule:
    return Schedule(np.arange(queries) * MS, np.arange(queries) % size, group=group)


def assigned(
    schedule: Schedule,
    streams: Sequence[MixStream],
    contents: Sequence[Samples],
    trace: ArrivalTrace | None = None,
    spread: DeadlineSpread | None = None,
    cancellation: Cancellation | None = None,
    seed: int = 1,
) -> tuple[RequestTable, Schedule]:
    return assign(
        schedule,
        streams,
        contents,
        trace=trace,
        trace_slo_scale=1.0,
        spread=spread,
        cancellation=cancellation,
        seed=seed,
    )


def test_a_plain_run_stays_as_it_is() -> None:
    schedule = plain()
    table, same = assigned(schedule, [stream("a", slo_ms=50)], [samples(10)])
    assert same is schedule
    assert len(table) == 10
    assert table.slo_ns(same.sample[:3]).tolist() == [50 * MS] * 3


def test_streams_come_by_their_shares_each_with_its_own_samples() -> None:
    streams = [stream("a", share=1, slo_ms=50), stream("b", share=3, priority=2)]
    table, schedule = assigned(plain(), streams, [samples(10), samples(5, first=100)])
    counts = np.bincount(schedule.stream)
    # Four standard deviations of a binomial count.
    assert counts.tolist() == pytest.approx([10_000, 30_000], abs=4 * 87)
    assert table.stream_of(schedule.sample).tolist() == schedule.stream.tolist()
    by_sample = np.bincount(schedule.sample, minlength=15)
    assert by_sample[:10].tolist() == pytest.approx([1000] * 10, abs=4 * 31)
    assert by_sample[10:].tolist() == pytest.approx([6000] * 5, abs=4 * 72)
    prepared = table.requests(schedule.sample)
    assert sorted(prepared) == list(range(15))
    assert (prepared[0].model, prepared[0].slo_ms, prepared[0].priority) == ("model-a", 50, 0)
    assert (prepared[12].model, prepared[12].slo_ms, prepared[12].priority) == ("model-b", None, 2)
    assert prepared[12].tensors["x"].tolist() == [102]
    assert table.slo_ns(np.array([0, 12])).tolist() == [50 * MS, -1]


def test_a_query_carries_the_options_of_its_stream_and_its_objective_counts_from_its_start() -> None:
    ahead = MixStream(name="a", model="a", slo_ms=50, min_accuracy=0.9, max_cost=0.5, start_after_ms=20)
    table, _ = assigned(plain(), [ahead], [samples(10)])
    options = {"slo_ms": 50, "min_accuracy": 0.9, "max_cost": 0.5, "start_after_ms": 20}
    assert [each.parameters() for each in table.requests(np.array([0, 1])).values()] == [options] * 2
    assert table.slo_ns(np.array([0, 1])).tolist() == [70 * MS] * 2
    unbounded = MixStream(name="a", model="a", start_after_ms=20)
    assert assigned(plain(), [unbounded], [samples(10)])[0].slo_ns(np.array([0])).tolist() == [-1]


def test_the_same_seed_gives_the_same_mix_and_another_one_another() -> None:
    streams, contents = [stream("a"), stream("b")], [samples(10), samples(5)]
    digests = [assigned(plain(), streams, contents, seed=seed)[1].digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]


def test_the_queries_of_a_group_belong_to_one_stream() -> None:
    _, schedule = assigned(plain(400, group=4), [stream("a"), stream("b")], [samples(10), samples(5)])
    groups = schedule.stream.reshape(-1, 4)
    assert (groups == groups[:, :1]).all()
    assert 0 < groups[:, 0].sum() < 100


def test_own_objectives_are_uniform_in_levels_and_prepared_with_each_sample() -> None:
    table, schedule = assigned(plain(), [stream("a")], [samples(10)], spread=DeadlineSpread(50, 210))
    slo_ms = table.slo_ns(schedule.sample) / MS
    assert np.unique(slo_ms).tolist() == [55 + 10 * level for level in range(16)]
    assert slo_ms.mean() == pytest.approx(130, abs=4 * 46 / QUERIES**0.5)
    # The samples are those of the plain schedule: the objectives come on top.
    assert table.sample_of(schedule.sample).tolist() == plain().sample.tolist()
    prepared = table.requests(schedule.sample)
    assert len(prepared) == 160
    assert {request.slo_ms for request in prepared.values()} == set(slo_ms.tolist())


def test_a_share_of_the_queries_is_given_up() -> None:
    _, schedule = assigned(plain(), [stream("a")], [samples(10)], cancellation=Cancellation(0.1, 50))
    assert schedule.cancel_ns is not None
    assert np.unique(schedule.cancel_ns).tolist() == [-1, 50 * MS]
    assert int((schedule.cancel_ns >= 0).sum()) == pytest.approx(4000, abs=4 * 60)
    assert schedule.sample.tolist() == plain().sample.tolist()


TRACE = ArrivalTrace(
    np.arange(4.0),
    Labels(("a", "b"), np.array([0, 1, 1, 0], np.int32)),
    slo_ms=np.array([np.nan, 20.0, 30.0, 20.0]),
)


def test_a_trace_names_the_stream_and_the_objective_of_each_query_also_when_it_starts_over() -> None:
    streams = [stream("b"), stream("a", slo_ms=99)]
    table, schedule = assigned(plain(6), streams, [samples(3), samples(2)], trace=TRACE)
    assert schedule.stream.tolist() == [1, 0, 0, 1, 1, 0]
    assert (table.slo_ns(schedule.sample) / MS).tolist() == [99, 20, 30, 20, 99, 20]


def test_a_trace_with_very_many_objectives_has_64_of_them() -> None:
    slo_ms = np.linspace(10, 1000, 1000)
    trace = ArrivalTrace(np.arange(1000.0), slo_ms=slo_ms)
    table, schedule = assigned(plain(1000), [stream("a")], [samples(10)], trace=trace)
    found = table.slo_ns(schedule.sample) / MS
    assert len(np.unique(found)) <= 64
    assert (found <= slo_ms + 1e-6).all()
    assert (found >= slo_ms / 1.08).all()


def test_a_stream_that_the_mix_lacks_is_refused() -> None:
    with pytest.raises(ConfigError, match="--mix: no stream 'b', which the trace names"):
        assigned(plain(4), [stream("a"), stream("c")], [samples(3), samples(2)], trace=TRACE)


def test_a_trace_that_names_models_and_classes_is_a_mix() -> None:
    labels = Labels(("m", "n"), np.array([0, 1, 0], np.int32))
    classes = Labels(("", "x"), np.array([0, 1, 1], np.int32))
    mix = mix_of_trace(ArrivalTrace(np.arange(3.0), labels, classes), "t.csv", stream("", slo_ms=70))
    assert [(each.name, each.model, each.slo_ms) for each in mix.streams] == [
        ("m", "m", 70),
        ("m/x", "m", 70),
        ("n/x", "n", 70),
    ]
    with pytest.raises(ConfigError, match=r"t\.csv: names no models; expected --model, --mix or a column model"):
        mix_of_trace(ArrivalTrace(np.arange(3.0)), "t.csv", stream(""))
    many = Labels(tuple(map(str, range(1025))), np.arange(1025, dtype=np.int32))
    with pytest.raises(ConfigError, match="names 1025 models; expected at most 1024: divide them among models"):
        mix_of_trace(ArrivalTrace(np.arange(1025.0), many), "t.csv", stream(""))


def test_labels_belong_to_the_rows_of_their_stream() -> None:
    contents = [samples(4, rows_per_query=2, labelled=True), samples(5)]
    table = RequestTable([stream("a"), stream("b")], contents)
    expected = table.expected(np.array([1, 3, 0]))
    assert expected is not None
    assert expected.tolist() == [[2, 3], [-1, -1], [0, 1]]
    assert RequestTable([stream("b")], contents[1:]).expected(np.array([0])) is None


def test_requests_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_PREPARED_BYTES", 36)
    table = RequestTable([stream("a")], [samples(10)])
    assert len(table.requests(np.arange(9))) == 9
    with pytest.raises(ConfigError, match="the 10 different ones of the run are too large to be prepared"):
        table.requests(np.arange(10))


@pytest.mark.parametrize(("low", "high"), [(50, 50), (0, 10), (10, float("inf"))])
def test_a_spread_that_is_none_is_refused(low: float, high: float) -> None:
    with pytest.raises(ValueError, match=r"expected LOW\.\.HIGH with 0 < LOW < HIGH"):
        DeadlineSpread(low, high)


@pytest.mark.parametrize(("share", "after_ms"), [(0, 50), (1.5, 50), (0.1, -1), (0.1, float("nan"))])
def test_a_cancellation_that_is_none_is_refused(share: float, after_ms: float) -> None:
    with pytest.raises(ValueError, match="expected a"):
        Cancellation(share, after_ms)
