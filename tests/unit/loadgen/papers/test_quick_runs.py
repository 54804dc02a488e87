"""Quick runs of all experiments meet their gates."""

import pytest

from sluice.gateway.version import is_compiled
from sluice.loadgen.papers.experiment import Effort, GateVerdict, find_experiments

MISSED = {"dag-admission"}
"""Experiments that miss a gate today, in a quick run."""
MEASURED = {"pipelines", "knix"}
"""Experiments that time a real server; `tests/system/test_paper.py` runs them, and does not judge their times."""
COUNTED = {"scale"}
"""Experiments that count the interpreter's instructions, of which compiled code has none."""
NAMES = [each.name for each in find_experiments() if each.name not in MISSED | MEASURED]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_meets_its_gates_in_a_quick_run(name: str) -> None:
    (experiment,) = (each for each in find_experiments() if each.name == name)
    report = experiment.run(Effort(seeds=2, quick=True))
    has_gates = not (is_compiled() and name in COUNTED)
    expected = GateVerdict.MET if has_gates else GateVerdict.SHOWN
    assert report.verdict is expected, [each for each in report.findings if each.verdict is GateVerdict.MISSED]
