"""Writes the generated pages of docs/reference: `python -m scripts.reference`."""
