"""Data of a run: the samples that it sends, the record of each query, and the statistics of both ends."""
