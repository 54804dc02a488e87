"""The executor over worker servers, which run the batches of remote partitions."""
