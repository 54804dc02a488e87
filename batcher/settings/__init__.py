"""TODO batcher/settings."""
