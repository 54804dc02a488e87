"""TODO batcher/scheduler."""
