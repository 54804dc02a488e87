"""The planning problem of a pipeline: the options of its stages and its shape."""
