"""TODO models/measuring."""
