"""Confines a process to its partition before libraries start: cores, memory, and the environment that CUDA reads."""
