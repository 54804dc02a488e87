"""Pipelines of models and combiners: their file, their checks, and the families of models that they refer to."""
