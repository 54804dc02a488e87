"""TODO gateway/config."""
