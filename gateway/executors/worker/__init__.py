"""TODO gateway/executors/worker."""
