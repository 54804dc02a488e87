"""Benchmarks, run by `make bench`: speed against a baseline that is measured in the same run."""
