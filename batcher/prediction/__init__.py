"""TODO batcher/prediction."""
