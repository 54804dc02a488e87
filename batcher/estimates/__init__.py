"""TODO batcher/estimates."""
