"""The way of a model's files to other machines: sets of files by their contents, a cache, and where it reads from."""
