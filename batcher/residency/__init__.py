"""TODO batcher/residency."""
