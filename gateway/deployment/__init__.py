"""TODO gateway/deployment."""
