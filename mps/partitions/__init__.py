"""The partitions of a machine: their kinds, capacity, isolation report, and the lending of idle resources."""
