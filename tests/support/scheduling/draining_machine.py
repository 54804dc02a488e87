"""A state machine whose last check runs only after steps that passed, so that it never hides the failure of a step."""

import sys

from hypothesis.stateful import RuleBasedStateMachine


class DrainingMachine(RuleBasedStateMachine):
    """A state machine that ends with `drain`."""

    def __init__(self) -> None:
        super().__init__()
        self._error_before = sys.exc_info()[1]

    def drain(self) -> None:
        """Let everything end, and check what is left."""
        raise NotImplementedError

    def teardown(self) -> None:
        """Drain, unless a step has failed: its error is being raised, and another one would replace it."""
        error = sys.exc_info()[1]
        if error is self._error_before or not isinstance(error, Exception):
            self.drain()
