"""Traces: recorded arrivals, read from the formats in which they are published, changed, and described."""
