"""Targets for the load generator that misbehave on purpose."""
