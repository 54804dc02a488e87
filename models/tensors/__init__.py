"""TODO models/tensors."""
