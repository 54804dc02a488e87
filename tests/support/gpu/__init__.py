"""A fake NVML and a fake MPS, and processes with a CUDA context."""
