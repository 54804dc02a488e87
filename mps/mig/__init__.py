"""TODO mps/mig."""
