"""Metrics, statistics, traces, explanations and logs."""
