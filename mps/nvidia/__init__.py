"""GPUs through NVIDIA's libraries: NVML for devices, MIG and errors, CUDA for the view of one process."""
