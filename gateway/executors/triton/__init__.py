"""TODO gateway/executors/triton."""
