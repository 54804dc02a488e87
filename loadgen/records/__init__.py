"""TODO loadgen/records."""
