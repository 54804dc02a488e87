"""TODO models/profiles."""
