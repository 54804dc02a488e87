"""Targets: the systems under test that the load generator can drive."""
