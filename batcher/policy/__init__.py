"""Batch policies: when the batch at the head of a queue closes and how big it is."""
