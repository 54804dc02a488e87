"""The partitions of a machine, the worker processes on them, and the memory that they share with the gateway."""
