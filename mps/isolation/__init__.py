"""TODO mps/isolation."""
