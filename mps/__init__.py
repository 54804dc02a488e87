"""WHERE it runs: partitions of a machine, pinned worker processes and the tensor arena they share."""
