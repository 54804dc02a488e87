"""The workers of remote partitions: who finds or places them, and the nodes that they are on."""
