"""TODO batcher/dispatch."""
