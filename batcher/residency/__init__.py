"""Which models each partition holds: loads, unloads and evictions, by a plan or on demand."""
