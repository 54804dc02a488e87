"""TODO gateway/what_if."""
