"""The end of a state machine is checked, and does not hide the failure of a step."""

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.support.scheduling.draining_machine import DrainingMachine

QUICK = settings(max_examples=5, stateful_step_count=3, phases=[Phase.generate], database=None)


class PassingSteps(DrainingMachine):
    @rule()
    def run(self) -> None:
        """A step."""

    def drain(self) -> None:
        raise ValueError("something is left")


class FailingSteps(PassingSteps):
    @rule()
    def fail(self) -> None:
        raise ValueError("the step failed")


@pytest.mark.parametrize(("machine", "error"), [(PassingSteps, "something is left"), (FailingSteps, "the step failed")])
def test_the_first_error_is_raised(machine: type[DrainingMachine], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        run_state_machine_as_test(machine, settings=QUICK)
