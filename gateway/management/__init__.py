"""TODO gateway/management."""
