"""Executors run batches on worker processes and on Triton servers, and report events of the core."""
