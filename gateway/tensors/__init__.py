"""TODO gateway/tensors."""
