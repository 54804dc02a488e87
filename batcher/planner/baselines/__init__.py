"""Planners from the literature, to compare the exact one with."""
