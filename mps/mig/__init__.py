"""MIG geometry and layouts: the instances that a GPU can hold, those that are wanted, and the steps between the two."""
