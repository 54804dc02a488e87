"""The schedulers of a pool of GPUs, as the thesis prints them step by step, and under Poisson arrivals."""

import pytest

from sluice.batcher.interface.instance_config import InstanceRule
from sluice.loadgen.papers.engines.model_pool import PoolRun
from sluice.loadgen.papers.experiment import Effort, GateVerdict
from sluice.loadgen.papers.kaas_poisson import PUBLISHED, QUICK_STEPS, play
from sluice.loadgen.papers.kaas_poisson import run as run_poisson
from sluice.loadgen.papers.kaas_traces import BERT, RESNET, STATED, drawn, trace


def steps_of(run: PoolRun) -> list[tuple[float, str, float, int]]:
    """(arrival, model, start, GPU) of each request, in the order of starts."""
    return [(each.came, each.model, each.started, each.gpu) for each in run.starts]


@pytest.mark.parametrize("rule", [InstanceRule.BALANCE, InstanceRule.EXCLUSIVE])
def test_balance_and_exclusive_do_what_the_thesis_prints(rule: InstanceRule) -> None:
    run = trace(rule)
    assert steps_of(run) == [(0, RESNET, 0, 1), (1, BERT, 1, 2), (2, RESNET, 6, 1), (3, RESNET, 8, 1)]
    assert (run.total, run.cold_starts, run.hits, run.mean_wait()) == (19, 2, 2, 2.25)
    assert (run.mean_wait(RESNET), run.mean_wait(BERT)) == (3.0, 0.0)


def test_round_robin_does_what_the_thesis_prints_and_gives_the_lost_figure() -> None:
    run = trace(InstanceRule.ROUND_ROBIN)
    assert steps_of(run) == [(0, RESNET, 0, 1), (1, BERT, 1, 2), (2, RESNET, 6, 1), (3, RESNET, 19, 2)]
    assert (run.total, run.cold_starts, run.hits, run.mean_wait(), run.mean_wait(BERT)) == (25, 3, 1, 5.0, 0.0)
    assert run.mean_wait(RESNET) == pytest.approx(6.667, abs=0.001)


def test_the_shortest_first_and_some_draws_of_the_buckets_do_what_the_thesis_prints() -> None:
    share, first = drawn(100)
    assert 1 / 50 < share < 1 / 8
    for run in (trace(InstanceRule.SRTF), first):
        assert run is not None
        assert steps_of(run) == [(0, RESNET, 0, 1), (2, RESNET, 2, 2), (3, RESNET, 6, 1), (1, BERT, 8, 2)]
        assert (run.total, run.cold_starts, run.hits, run.mean_wait()) == (26, 3, 1, 2.5)
        assert (run.mean_wait(RESNET), run.mean_wait(BERT)) == (1.0, 7.0)


@pytest.mark.parametrize(
    ("rule", "starts", "total", "wait"),
    [
        (InstanceRule.ROUND_ROBIN, [0, 1, 10, 31], 41, 9.0),
        (InstanceRule.BALANCE, [0, 1, 10, 15], 31, 5.0),
        (InstanceRule.EXCLUSIVE, [0, 1, 10, 15], 31, 5.0),
        (InstanceRule.SRTF, [0, 2, 10, 12], 42, 4.5),
    ],
)
def test_the_stated_times_give_other_traces(rule: InstanceRule, starts: list[int], total: int, wait: float) -> None:
    run = trace(rule, STATED)
    assert ([each.started for each in run.starts], run.total, run.mean_wait()) == (starts, total, wait)


def test_the_shortest_of_those_that_have_come_is_the_first_here() -> None:
    assert trace(InstanceRule.SRTF, STATED, lookahead=False) == trace(InstanceRule.BALANCE, STATED)


def test_all_policies_but_exclusive_load_both_models_on_all_gpus() -> None:
    cold = {rule: [play(rule, seed, steps=QUICK_STEPS).cold_starts for seed in (11, 12)] for rule in PUBLISHED}
    assert cold == {rule: [4, 4] if rule is InstanceRule.EXCLUSIVE else [8, 8] for rule in PUBLISHED}


def test_a_quick_run_meets_its_gates_and_says_what_does_not_reproduce() -> None:
    report = run_poisson(Effort(quick=True))
    assert report.verdict is GateVerdict.MET
    (differs,) = [each for each in report.findings if each.verdict is GateVerdict.DIFFERS]
    assert differs.published == "80.65"
