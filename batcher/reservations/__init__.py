"""Reserved time slots for requests that must not be late or must not cost too much."""
