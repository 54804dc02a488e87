"""TODO batcher/drivers."""
