"""TODO loadgen/run."""
