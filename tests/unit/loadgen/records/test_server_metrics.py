import pytest

from sluice.loadgen.records.server_metrics import BatchStatistics, StageShare, metrics_between, read_counters

BEFORE = """
# TYPE sluice_batch_rows histogram
sluice_batch_rows_bucket{model="a:1",partition="p0",le="+Inf"} 10
sluice_batch_rows_sum{model="a:1",partition="p0"} 40
sluice_batch_rows_count{model="a:1",partition="p0"} 10
# TYPE other counter
other_total 3
"""
AFTER = """
# TYPE sluice_batch_rows histogram
sluice_batch_rows_bucket{model="a:1",partition="p0",le="+Inf"} 30
sluice_batch_rows_sum{model="a:1",partition="p0"} 100
sluice_batch_rows_count{model="a:1",partition="p0"} 30
sluice_batch_rows_sum{model="b:1",partition="p1"} 0
sluice_batch_rows_count{model="b:1",partition="p1"} 0
# TYPE sluice_stage_rows counter
sluice_stage_rows_total{pipeline="c",stage="small"} 60
sluice_stage_rows_total{pipeline="c",stage="large"} 15
"""


def test_the_difference_of_two_scrapes() -> None:
    server = metrics_between(read_counters(BEFORE), read_counters(AFTER))
    assert server.batches == (BatchStatistics("a:1", "p0", 20, 3.0),)
    assert server.stages == (StageShare("c", "large", 15, 0.25), StageShare("c", "small", 60, 1.0))


def test_what_is_no_metrics_is_refused() -> None:
    with pytest.raises(ValueError, match=r"could not convert|nvalid"):
        read_counters("<html> 1 2 3 {")
