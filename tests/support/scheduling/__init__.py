"""Builders, simulated services and scenarios for tests of the scheduler."""
