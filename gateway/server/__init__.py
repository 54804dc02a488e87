"""TODO gateway/server."""
