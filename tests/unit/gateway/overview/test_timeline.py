"""Bars of batches, and how many become one."""

from sluice.batcher.interface.decisions import DispatchBatch, ReleaseReason
from sluice.gateway.observability.traces.trace import BatchTrace
from sluice.gateway.overview.timeline import KEPT_STEPS, Timeline
from sluice.models.units import ms_to_ns


def run(number: int, at_ms: float, ms: float = 1.0, model: str = "m:1", partition: str = "cpu0") -> BatchTrace:
    batch = DispatchBatch(number, partition, model, 2, (), ReleaseReason.IDLE)
    return BatchTrace(batch, ms_to_ns(at_ms), started_ns=ms_to_ns(at_ms), ended_ns=ms_to_ns(at_ms + ms))


def test_each_batch_is_a_bar_and_is_there_after_its_step() -> None:
    timeline = Timeline(8)
    timeline.batch_ended(run(7, 100, 2.5))
    timeline.batch_ended(run(9, 110, 1, "n:1", "cpu1"))
    assert timeline.bars(None, 10) == []
    timeline.end_step()
    first, second = timeline.bars(None, 10)
    assert (first.number, first.batch, first.partition, first.model) == (1, 7, "cpu0", "m:1")
    assert (first.start_ns, first.busy_ns, first.rows, first.merged) == (100_000_000, 2_500_000, 2, 1)
    assert (second.number, second.batch, second.partition, second.model) == (2, 9, "cpu1", "n:1")
    assert timeline.last == 2
    assert timeline.bars(1, 10) == [second]
    assert timeline.bars(2, 10) == []


def test_too_many_batches_become_fewer_bars_with_all_their_time_and_rows() -> None:
    timeline = Timeline(8)
    for number in range(100):
        timeline.batch_ended(run(number, number, 0.5))
    timeline.end_step()
    bars = timeline.bars(None, 100)
    assert 1 < len(bars) <= 8
    assert sum(bar.merged for bar in bars) == 100
    assert sum(bar.rows for bar in bars) == 200
    assert sum(bar.busy_ns for bar in bars) == ms_to_ns(50)
    starts = [bar.start_ns for bar in bars]
    assert starts == sorted(starts)
    assert bars[0].batch == 0


def test_bars_are_fine_again_when_there_is_less_to_do() -> None:
    timeline = Timeline(8)
    for number in range(100):
        timeline.batch_ended(run(number, number, 0.5))
    timeline.end_step()
    for _ in range(6):
        timeline.end_step()
    last = timeline.last
    timeline.batch_ended(run(200, 7000))
    timeline.batch_ended(run(201, 7001.5))
    timeline.end_step()
    assert [bar.merged for bar in timeline.bars(last, 100)] == [1, 1]


def test_batches_of_more_models_than_there_may_be_bars_are_left_out_and_counted() -> None:
    timeline = Timeline(8)
    for number in range(20):
        timeline.batch_ended(run(number, number, 0.5, f"m{number}:1"))
    timeline.end_step()
    assert len(timeline.bars(None, 100)) == 8
    assert timeline.left_out == 12
    timeline.end_step()
    assert timeline.left_out == 0


def test_a_few_steps_are_kept_and_the_first_answer_has_whole_ones() -> None:
    timeline = Timeline(8)
    for step in range(KEPT_STEPS + 3):
        for number in range(4):
            timeline.batch_ended(run(10 * step + number, 1000 * step + number))
        timeline.end_step()
    assert len(timeline.bars(0, 1000)) == 4 * KEPT_STEPS
    latest = timeline.bars(None, 10)
    assert [bar.batch for bar in latest] == [110, 111, 112, 113, 120, 121, 122, 123]
    assert [bar.batch for bar in timeline.bars(None, 2)] == [122, 123]


def test_models_that_ran_last_come_first() -> None:
    timeline = Timeline(8)
    for number, model in enumerate(("a:1", "b:1", "a:1")):
        timeline.batch_ended(run(number, number, model=model))
    timeline.batch_ended(run(4, 4, model="c:1", partition="cpu1"))
    assert timeline.recent_models("cpu0") == []
    timeline.end_step()
    assert timeline.recent_models("cpu0") == ["a:1", "b:1"]
