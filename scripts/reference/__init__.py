"""Writes the generated pages of the documentation: `python -m scripts.reference`."""
