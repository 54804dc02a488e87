"""TODO batcher/reservations."""
