"""TODO models/repository."""
