"""TODO mps/supervisor."""
