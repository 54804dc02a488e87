"""A Triton server as a partition: its process, its models, and the batches that it runs."""
