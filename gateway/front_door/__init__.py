"""Bounds on what clients can make the server keep."""
