"""TODO batcher/queues."""
