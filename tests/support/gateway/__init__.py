"""Server processes, their clients, and parts of a gateway around test doubles."""
