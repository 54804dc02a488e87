"""TODO gateway/runtime."""
