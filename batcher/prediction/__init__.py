"""Predictions of how long a request takes where nothing else waits."""
