"""TODO gateway/partitions."""
