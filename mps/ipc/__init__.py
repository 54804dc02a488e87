"""TODO mps/ipc."""
