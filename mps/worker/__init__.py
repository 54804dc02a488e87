"""The worker process: holds the models of one partition, runs batches, and reports how well it is isolated."""
