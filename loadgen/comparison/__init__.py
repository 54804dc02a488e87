"""Comparison of targets: paired runs of the same schedules, and what their differences prove."""
