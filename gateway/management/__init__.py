"""The control plane: queries and changes of a server apart from inference."""
