"""TODO mps/worker."""
