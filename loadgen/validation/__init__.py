"""TODO loadgen/validation."""
