"""TODO gateway/inference."""
