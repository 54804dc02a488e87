"""TODO batcher/policies."""
