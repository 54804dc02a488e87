"""TODO models/triton_config."""
