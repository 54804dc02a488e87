"""TODO mps/daemon."""
