"""The state machine: takes events, returns decisions, and owns the order of effects."""
