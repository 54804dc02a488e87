"""TODO models/pipelines."""
