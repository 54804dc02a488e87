"""TODO models/backends/python_models."""
