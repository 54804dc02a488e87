"""TODO mps/nvidia."""
