"""TODO gateway/cli."""
