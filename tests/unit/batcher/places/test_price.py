"""The price of a place: small batches are opened if they serve all that comes, or if none could be larger later."""

import pytest

from sluice.batcher.interface.config import PipelineConfig
from sluice.batcher.places.price import Opening, larger_later_ns, opening
from sluice.batcher.prediction.pipeline_times import predict
from tests.support.scheduling.builders import (
    CERTAINTY,
    GAINING,
    MS,
    US,
    cascade,
    chain,
    model,
    serving,
    single,
    spec_of,
)

ROWS = [1, 2, 4, 8]
BATCHES = Opening(ROWS, [1000 * US, 1100 * US, 1200 * US, 1400 * US], [0.0] * 4, [0] * 4)
"""A model that takes 1 ms for a row and 1.4 ms for eight, always."""
SLOW_AT_TIMES = BATCHES._replace(slow_ns=[300.0 * US, 330.0 * US, 360.0 * US, 420.0 * US])
"""As `BATCHES`, where one batch in a hundred takes 30 % longer."""
NO_GAIN = Opening([1, 2], [MS, 2 * MS], [0.0] * 2, [0] * 2)


def opening_of(config: PipelineConfig, *opened: int, share: float = 1.0) -> Opening:
    """The opening of a pipeline of models that gain from batches, whose later stages run for a share of the rows."""
    scheduler = serving(spec_of([model("a:1", confidences=(CERTAINTY,)), model("b:1")], [config]), GAINING)
    pipeline = scheduler.pipelines[config.name]
    for stage in pipeline.stages[1:]:
        stage.run_probability = share
    predict(pipeline, 150 * US)
    (group,) = scheduler.dispatcher.fleet.groups
    return opening(pipeline, pipeline.stages[opened[0]], opened, group, 150 * US)


def test_larger_batches_of_a_stage_cost_little_more() -> None:
    assert opening_of(single("a:1"), 0) == BATCHES


def test_all_stages_that_open_batches_count_and_the_hand_offs_between_them() -> None:
    cost_ns = [2150 * US, 2350 * US, 2550 * US, 2950 * US]
    assert opening_of(chain("a:1", "b:1"), 0, 1) == Opening(ROWS, cost_ns, [0.0] * 4, [0] * 4)


def test_a_stage_that_joins_a_batch_costs_what_its_rows_add_to_it() -> None:
    # A batch of eight takes 0.4 ms more than one of one row, so that each of the seven others adds 57 us.
    cost_ns = [1057142, 1214285, 1428571, 1857142]
    assert opening_of(chain("a:1", "b:1"), 0) == Opening(ROWS, cost_ns, [0.0] * 4, [0] * 4)


def test_several_batches_of_the_first_stage_may_share_one_of_a_stage_that_few_rows_reach() -> None:
    found = opening_of(cascade("a:1", "b:1"), 0, 1, share=0.25)
    assert found.rows == [1, 2, 4, 8, 16, 24, 32]
    # Four full batches of the first stage, and one of eight rows of the second.
    assert found.cost_ns[-1] == (4 * 1400 + 150 + 1400) * US
    assert found.cost_ns[0] == (1000 + 150 + 250) * US


def test_the_last_stage_may_take_longer_since_more_rows_may_reach_it() -> None:
    found = opening_of(cascade("a:1", "b:1"), 0, 1, share=0.25)
    # Of one row, a quarter is expected and one may come. Of eight, two are expected, and time is kept for four. Of 32,
    # eight are expected, and time is kept for 11: a batch of eight and one of three.
    assert [found.spread_ns[found.rows.index(rows)] for rows in (1, 8, 32)] == [750 * US, 100 * US, 1200 * US]


@pytest.mark.parametrize(
    ("opening", "depth", "added_us"),
    [
        pytest.param(BATCHES, 1.0, [0, 100, 200, 400], id="what the rows take"),
        pytest.param(BATCHES, 3.0, [0, 100, 200, 400], id="what always takes as long does so behind others, too"),
        pytest.param(SLOW_AT_TIMES, 1.0, [0, 130, 260, 520], id="what they may take longer"),
        pytest.param(SLOW_AT_TIMES, 3.0, [0, 190, 380, 760], id="and those before them"),
    ],
)
def test_the_more_rows_the_later_a_batch_may_end(opening: Opening, depth: float, added_us: list[int]) -> None:
    assert [opening.added_ns(index, depth) for index in range(4)] == [each * US for each in added_us]


def test_what_may_take_longer_for_two_reasons_seldom_does_so_for_both() -> None:
    both = Opening([1, 2], [MS, MS], [0.0, 300.0 * US], [0, 400 * US])
    assert both.added_ns(1, 1.0) == 500 * US


@pytest.mark.parametrize(
    ("left_us", "until_us", "gap_us", "share", "is_last", "expected"),
    [
        pytest.param(400, 3000, 1000, 1.0, True, (4.0, 0), id="the batch can be full"),
        pytest.param(0, 3000, 1000, 1.0, True, (1.0, 0), id="single rows serve all that comes"),
        pytest.param(
            0, 3000, 327, 1.0, True, (1.0, 100 * US), id="three times as many come, and two can share one later"
        ),
        pytest.param(0, 3000, 327, 1.0, True, (1.0, 100 * US), id="four rows later serve nearly 1.1 times what comes"),
        pytest.param(0, 3000, 335, 1.0, True, (1.0, 0), id="four rows later serve more than 1.1 times what comes"),
        pytest.param(0, 1500, 335, 1.0, True, (1.0, 100 * US), id="four do not come in time"),
        pytest.param(0, 3000, 335, 0.9, True, (1.0, 100 * US), id="they have not all of the partition"),
        pytest.param(0, 3000, 335, 1.0, False, (1.0, 0), id="ahead of others, who will have larger ones again"),
        pytest.param(100, 2900, 327, 1.0, True, (2.0, 100 * US), id="of two rows to four it is as long"),
        pytest.param(0, 50, 500, 1.0, True, (1.0, 0), id="it starts before there is time for a larger one"),
        pytest.param(0, 1000, 450, 1.0, True, (1.0, 100 * US), id="two rows come before it starts"),
        pytest.param(0, 1000, 460, 1.0, True, (1.0, 0), id="two rows do not come before it starts"),
        pytest.param(0, 3000, 1000, 0.5, True, (1.0, 100 * US), id="with half of the partition they do not serve all"),
        pytest.param(0, 3000, 327, 1.0, False, (1.0, 3000 * US + 1), id="ahead of others it would take their time"),
        pytest.param(200, 1000, 100, 1.0, False, (4.0, 1000 * US + 1), id="ahead of others four are not enough"),
        pytest.param(200, 500, 100, 1.0, False, (4.0, 0), id="ahead of others four are as many as come in time"),
    ],
)
def test_it_is_worth_waiting_for_larger_batches_only_where_small_ones_do_not_serve_all_that_comes(
    left_us: int, until_us: int, gap_us: int, share: float, is_last: bool, expected: tuple[float, int]
) -> None:
    assert (
        larger_later_ns(BATCHES, until_us * US, left_us * US, 1.0, gap_us * US, share, 1, is_last=is_last) == expected
    )


def test_without_a_gain_from_batches_there_is_nothing_to_wait_for() -> None:
    assert larger_later_ns(NO_GAIN, 10 * MS, 0, 1.0, 500 * US, 1.0, 1, is_last=True) == (1.0, 0)


def test_there_is_longer_to_wait_where_batches_may_be_slow_and_others_are_before() -> None:
    for depth, wait_us in ((1.0, 130), (3.0, 190)):
        found = larger_later_ns(SLOW_AT_TIMES, 3 * MS, 0, depth, 327 * US, 1.0, 1, is_last=True)
        assert found == (1.0, wait_us * US)


def test_the_open_batch_of_several_partitions_gets_more_than_its_part_of_the_rows() -> None:
    # Two rows have to come in 900 us. Of four partitions that start at any times, the open batch is taken to get half
    # of what comes to all.
    for partitions, gap_us in ((1, 450), (4, 225), (16, 225)):
        found = larger_later_ns(BATCHES, MS, 0, 1.0, gap_us * US, 1.0 / partitions, partitions, is_last=True)
        assert found == (1.0, 100 * US)
        found = larger_later_ns(BATCHES, MS, 0, 1.0, (gap_us + 10) * US, 1.0 / partitions, partitions, is_last=True)
        assert found == (1.0, 0)
