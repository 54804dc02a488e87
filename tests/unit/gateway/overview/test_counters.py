"""Differences of the counters of the metrics."""

import pytest

from sluice.batcher.interface.outcome import Outcome
from sluice.gateway.observability.meters import Meters
from sluice.gateway.overview.counters import MAX_HISTORIES, Recorder, quantile_ns
from sluice.gateway.overview.history import HISTORY_STEPS, History
from sluice.gateway.overview.pieces import at_once
from sluice.models.units import NS_PER_MS, NS_PER_S

BOUNDS = (10, 20, 40)


class Sampled:
    """A recorder of counters that a test changes, sampled once a second."""

    def __init__(self, *pipelines: str) -> None:
        self.meters = Meters({name: ["a", "b"] for name in pipelines}, ["cpu0"])
        self.recorder = Recorder(self.meters)
        self.step = 100
        at_once(self.recorder.begin(100, 0))

    def tick(self, *chosen: str) -> None:
        self.step += 1
        at_once(self.recorder.sample(self.step, (self.step - 100) * NS_PER_S, chosen, ()))

    def end(self, pipeline: str, outcome: Outcome, count: int, ms: float = 1.0) -> None:
        for _ in range(count):
            self.meters.pipelines[pipeline].request_ended(outcome, round(ms * NS_PER_MS))


@pytest.mark.parametrize(
    ("buckets", "share", "expected"),
    [
        ((0, 0, 0, 0), 0.5, None),
        ((4, 0, 0, 0), 0.5, 5.0),
        ((0, 4, 0, 0), 0.25, 12.5),
        ((0, 2, 2, 0), 0.5, 20.0),
        ((0, 2, 2, 0), 0.75, 30.0),
        ((1, 0, 0, 9), 0.99, 40),
    ],
)
def test_a_quantile_is_interpolated_inside_its_bucket_as_in_promql(
    buckets: tuple[int, ...], share: float, expected: float | None
) -> None:
    assert quantile_ns(buckets, share, BOUNDS) == expected


def test_what_was_counted_before_the_first_look_does_not_count() -> None:
    meters = Meters({"p:1": ["a"]}, ["cpu0"])
    meters.pipelines["p:1"].request_ended(Outcome.COMPLETED, 1)
    recorder = Recorder(meters)
    at_once(recorder.begin(100, 0))
    at_once(recorder.sample(101, NS_PER_S, (), ()))
    assert recorder.totals.requests == 0
    assert recorder.window_s == 1.0


def test_the_window_has_the_last_ten_seconds() -> None:
    sampled = Sampled("p:1")
    sampled.end("p:1", Outcome.COMPLETED, 7, 3.0)
    sampled.tick()
    for _ in range(9):
        sampled.end("p:1", Outcome.COMPLETED_LATE, 1, 80.0)
        sampled.tick()
    window = sampled.recorder.tracks["p:1"].window
    assert window.ended == (7, 9, 0, 0, 0)
    assert sampled.recorder.window_s == 10.0
    sampled.tick()
    assert window.ended == (0, 9, 0, 0, 0)
    assert sampled.recorder.totals.ended == (0, 9, 0, 0, 0)
    assert window.quantile_ms(0.5) == 75.0  # the middle of the bucket from 50 to 100 ms
    for _ in range(9):
        sampled.tick()
    assert not window
    assert window.sums == [0] * len(window.sums)
    assert sampled.recorder.totals.requests == 0


def test_outcomes_are_grouped_and_cancelled_requests_do_not_count_as_missed() -> None:
    sampled = Sampled("p:1")
    for outcome in Outcome:
        sampled.end("p:1", outcome, 1)
    sampled.tick()
    ended = sampled.recorder.tracks["p:1"].window.ended
    assert ended == (1, 1, 8, 3, 1)
    assert ended.total == len(Outcome)
    assert ended.in_time == 1 / 13


def test_stages_and_costs_are_differences_as_well() -> None:
    sampled = Sampled("p:1")
    meter = sampled.meters.pipelines["p:1"]
    meter.stage_ran(0, 50, 1.0)
    sampled.end("p:1", Outcome.COMPLETED, 1)
    sampled.tick()
    meter.stage_ran(0, 8, 0.5)
    meter.stage_ran(1, 2, 0.25)
    sampled.end("p:1", Outcome.COMPLETED, 4)
    sampled.tick()
    window = sampled.recorder.tracks["p:1"].window
    assert window.stage_rows == [58, 2]
    assert window.cost_per_1000_good == 350.0


def test_a_pipeline_whose_stages_change_begins_again_and_keeps_its_history() -> None:
    sampled = Sampled("p:1")
    sampled.end("p:1", Outcome.COMPLETED, 5)
    sampled.tick("p:1")
    sampled.meters.serve("p:1", ["other"])
    sampled.tick("p:1")
    sampled.end("p:1", Outcome.COMPLETED, 2)
    sampled.tick("p:1")
    track = sampled.recorder.tracks["p:1"]
    assert track.window.ended.good == 2
    assert track.history is not None
    steps = track.history.steps(0, 104)
    assert (steps.first, steps.good) == (101, [5, 0, 2, 0])


def test_a_bounded_number_of_pipelines_has_a_history_and_a_chosen_one_takes_the_place_of_another() -> None:
    names = [f"p{number}:1" for number in range(MAX_HISTORIES + 2)]
    sampled = Sampled(*names)
    for name in names:
        sampled.end(name, Outcome.COMPLETED, 1)
    sampled.tick()
    sampled.tick(names[-1])
    kept = [name for name, track in sampled.recorder.tracks.items() if track.history is not None]
    assert len(kept) == MAX_HISTORIES
    assert names[-1] in kept
    assert names[0] not in kept
    steps = sampled.recorder.tracks[names[-1]].history
    assert steps is not None
    assert steps.steps(0, 103)[:2] == (102, [0, 0])  # what ended before is not known


def test_a_history_has_the_last_steps_and_blanks_where_nothing_ended() -> None:
    history = History(10)
    history.record(12, (1, 2, 3, 4, 5), 0.5, 0.9)
    assert history.steps(0, 13) == (
        11,
        [0, 1, 0],
        [0, 2, 0],
        [0, 3, 0],
        [0, 4, 0],
        [0, 5, 0],
        [None, 0.5, None],
        [None, 0.9, None],
    )
    assert history.steps(13, 13)[:2] == (13, [0])
    assert history.steps(14, 13)[:2] == (14, [])
    history.record(12 + 2 * HISTORY_STEPS, (7, 0, 0, 0, 0), None, None)
    steps = history.steps(0, 12 + 2 * HISTORY_STEPS)
    assert steps.first == 13 + HISTORY_STEPS
    assert steps.good == [0] * (HISTORY_STEPS - 1) + [7]


def test_a_partition_is_busy_for_a_share_of_the_window() -> None:
    sampled = Sampled("p:1")
    assert sampled.recorder.busy("cpu0") is None
    sampled.meters.busy_ns["cpu0"] += NS_PER_S // 4
    sampled.tick()
    assert sampled.recorder.busy("cpu0") == 0.25
    sampled.tick()
    assert sampled.recorder.busy("cpu0") == 0.125
    sampled.meters.busy_ns["cpu0"] += 60 * NS_PER_S  # a long batch is counted when it ends
    sampled.tick()
    assert sampled.recorder.busy("cpu0") == 1.0
