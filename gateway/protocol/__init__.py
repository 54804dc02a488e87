"""TODO gateway/protocol."""
