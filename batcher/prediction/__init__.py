"""Predictions of when a request is complete, and the promised work that they count."""
