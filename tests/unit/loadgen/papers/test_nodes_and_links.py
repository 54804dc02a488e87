"""ESG's chains on 16 nodes: transfers that are predicted make fewer requests late; what a node keeps is not sent."""

import pytest

from sluice.loadgen.papers.nodes_and_links import SETTINGS, play

SECONDS = 3


def test_over_links_that_take_no_time_all_are_in_time() -> None:
    result = play(SETTINGS[0], SECONDS)
    assert (result.in_time, result.late) == (1.0, 0.0)
    assert result.hits > 8 / 16, "later stages are seldom on the node of the stage before"


@pytest.mark.parametrize("gbit_per_s", [1, 10])
def test_transfers_that_are_predicted_make_fewer_requests_late(gbit_per_s: int) -> None:
    unknown, predicted, kept = (
        play(each, SECONDS) for each in SETTINGS if each.gbit_per_s == gbit_per_s and not each.loses_a_node
    )
    assert predicted.in_time >= unknown.in_time
    assert predicted.late <= unknown.late
    assert kept.sent_mb < predicted.sent_mb


def test_no_request_is_lost_with_a_node() -> None:
    (setting,) = (each for each in SETTINGS if each.loses_a_node)
    result = play(setting, SECONDS)
    assert result.failed == 0
    assert result.in_time > 0.9
