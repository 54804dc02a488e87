"""TODO batcher/interface."""
