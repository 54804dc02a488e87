"""The inventory of partitions: what each holds and proves, and the MPS daemons that they need."""
