"""A real Triton and a fake one, and their models and tools."""
