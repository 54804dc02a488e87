"""The partitions that are up, in groups of equals: when each can run a batch, and how fast models are there."""
