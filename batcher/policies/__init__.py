"""Batch policies: when a batch closes and how many rows it has; one file for each policy, which registers itself."""
