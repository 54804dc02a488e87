"""The model repository: reading its entries, their names, and the signs of change in their files."""
