"""Numbers that are learned from observations: latencies, rates, batch limits."""
