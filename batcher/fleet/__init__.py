"""TODO batcher/fleet."""
