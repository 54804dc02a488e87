"""A machine in virtual time for a whole gateway: its kernel, its workers, its clients and its faults."""
