"""Scenarios: the shape of a run's queries over time, one file each."""
