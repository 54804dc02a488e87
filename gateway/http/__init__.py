"""TODO gateway/http."""
