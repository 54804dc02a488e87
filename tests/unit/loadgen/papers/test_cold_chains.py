"""Cold starts of chains: a request waits for one load, not one a stage."""

import pytest

from sluice.batcher.interface.residency_config import Prewarm
from sluice.loadgen.papers.cold_chains import LOAD_NS, RUN_NS, cold_chain


@pytest.mark.parametrize("stages", [1, 2, 5, 10])
def test_a_chain_takes_one_cold_start_however_long_it_is(stages: int) -> None:
    assert cold_chain(stages, Prewarm.OFF).overhead_ns == pytest.approx(stages * LOAD_NS, rel=0.01)
    assert cold_chain(stages, Prewarm.JIT).overhead_ns == pytest.approx(LOAD_NS, rel=0.01)


def test_just_in_time_models_hardly_lie_idle_before_they_run() -> None:
    just_in_time = cold_chain(10, Prewarm.JIT)
    speculative = cold_chain(10, Prewarm.SPECULATIVE)
    assert speculative.locked_ns == pytest.approx(sum(stage * RUN_NS for stage in range(10)), rel=0.01)
    assert just_in_time.locked_ns <= 0.05 * speculative.locked_ns
