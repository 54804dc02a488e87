"""The formats in which traces are published, one file each; `found` knows them all."""
