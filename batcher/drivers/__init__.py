"""Drivers of the scheduler besides the gateway: the simulator, the journal and its replay, the invariants."""
