"""Families: requests that name an accuracy get it, and more of them are in time."""

from sluice.loadgen.papers.model_families import QUICK_PHASE_S, arrivals, play


def test_variants_by_request_keep_the_accuracy_and_miss_fewer_requests() -> None:
    requests = arrivals(2, QUICK_PHASE_S)
    chosen = play(requests, QUICK_PHASE_S, chooses=True)
    fixed = play(requests, QUICK_PHASE_S, chooses=False)
    assert chosen.inaccurate == 0
    assert fixed.missed > 1.6 * chosen.missed
    assert chosen.in_time_s > 1.3 * fixed.in_time_s
    assert fixed.accuracy > chosen.accuracy
