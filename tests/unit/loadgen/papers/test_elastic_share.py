import pytest

from sluice.loadgen.papers.elastic_share import BESIDE_HARD, ONE_BY_ONE, PAUSING, STEADY, cases, run, table
from sluice.loadgen.papers.engines.shared_device import ShareCap, run_jobs
from sluice.loadgen.papers.experiment import Effort


def test_hard_shares_take_as_long_as_they_are_small() -> None:
    shared = run_jobs(ShareCap.HARD, STEADY, 0.01)
    assert shared.end_s == pytest.approx({"0.1": 10.0, "0.9": 1 / 0.9})
    assert shared.utilisation == pytest.approx(0.2)


@pytest.mark.parametrize("batch_s", [0.002, 0.01, 0.05])
def test_elastic_shares_lend_idle_time_and_keep_guaranteed_shares(batch_s: float) -> None:
    shared, hard = run_jobs(ShareCap.ELASTIC, STEADY, batch_s), run_jobs(ShareCap.HARD, STEADY, batch_s)
    assert shared.end_s["0.1"] / hard.end_s["0.1"] - 1 == pytest.approx(-0.80, abs=0.02)
    assert shared.end_s["0.9"] / hard.end_s["0.9"] - 1 <= 0.15
    assert shared.end_s["0.9"] <= 1 / 0.9 + batch_s  # one batch of the other, and no more
    assert shared.utilisation - hard.utilisation >= 0.735


def test_without_caps_the_large_share_is_not_kept() -> None:
    assert run_jobs(ShareCap.UNCAPPED, STEADY, 0.01).end_s == pytest.approx({"0.1": 2.0, "0.9": 2.0})


@pytest.mark.parametrize("batch_s", [0.002, 0.01, 0.05])
def test_a_job_that_lends_its_pauses_loses_little(batch_s: float) -> None:
    shared, hard = run_jobs(ShareCap.ELASTIC, PAUSING, batch_s), run_jobs(ShareCap.HARD, PAUSING, batch_s)
    assert shared.end_s["0.1"] / hard.end_s["0.1"] - 1 == pytest.approx(-0.80, abs=0.02)
    assert shared.end_s["0.9"] / hard.end_s["0.9"] - 1 <= 0.15


def test_a_closed_loop_job_does_not_wait_for_a_batch_of_the_other_each_time() -> None:
    shared, hard = run_jobs(ShareCap.ELASTIC, ONE_BY_ONE, 0.01), run_jobs(ShareCap.HARD, ONE_BY_ONE, 0.01)
    assert shared.end_s["0.1"] / hard.end_s["0.1"] - 1 == pytest.approx(-0.80, abs=0.02)
    assert shared.end_s["0.9"] / hard.end_s["0.9"] - 1 <= 0.01


def test_an_elastic_share_beside_a_hard_one_gets_its_share() -> None:
    shared, hard = run_jobs(ShareCap.ELASTIC, BESIDE_HARD, 0.01), run_jobs(ShareCap.HARD, BESIDE_HARD, 0.01)
    assert shared.end_s["0.1"] / hard.end_s["0.1"] - 1 == pytest.approx(-0.80, abs=0.02)
    assert shared.end_s["0.9"] / hard.end_s["0.9"] - 1 == pytest.approx(0.096, abs=0.001)


def test_lent_time_saves_energy_and_memory_is_held_for_less_time() -> None:
    steady = next(cases())
    # Hard: the last job ends after 10 s, of which the GPU is busy for 2; both hold 2 GB, one of them for 1.11 s only.
    assert steady.energy_j(ShareCap.HARD) == pytest.approx(10 * 60 + 2 * 200)
    assert steady.energy_j(ShareCap.ELASTIC) == pytest.approx(2 * 60 + 2 * 200, rel=0.01)
    assert steady.memory_gb(ShareCap.HARD) == pytest.approx(2 * (10 + 1 / 0.9) / 10)
    assert steady.memory_gb(ShareCap.ELASTIC) == pytest.approx(2 * (2 + 1.12) / 2, rel=0.01)


def test_the_report_has_the_table() -> None:
    (lines,) = run(Effort()).tables
    assert "| both steady | 10 ms | hard | 10.00 | +0.0% | 1.11 | +0.0% | 20% |" in lines.splitlines()


def test_the_table_has_a_line_for_each_cap() -> None:
    lines = table(cases()).splitlines()
    assert lines[3] == "| both steady | 10 ms | elastic | 2.00 | -80.0% | 1.12 | +0.8% | 100% |"
    assert {line.count("|") for line in lines} == {9}
