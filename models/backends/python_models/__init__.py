"""The process of a model written in Python: its main program, its messages, and Triton's interface for models."""
