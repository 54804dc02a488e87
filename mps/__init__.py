"""Where models run: the partitions of a machine, the worker processes on them, and the memory that they share."""
