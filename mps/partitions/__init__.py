"""TODO mps/partitions."""
