"""TODO batcher/state."""
