"""TODO gateway/observability."""
