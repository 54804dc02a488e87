"""Batches: when they close, where they run, and what happens when they time out or fail."""
