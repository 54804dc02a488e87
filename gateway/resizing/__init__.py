"""TODO gateway/resizing."""
