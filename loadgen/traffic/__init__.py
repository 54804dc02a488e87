"""TODO loadgen/traffic."""
