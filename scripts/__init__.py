"""Programs for those who work on Sluice: the reference pages, the structure, the bounds, the check of a GPU."""
