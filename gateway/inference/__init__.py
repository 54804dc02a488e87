"""The data plane: checks inference requests, submits them to the runtime and builds responses."""
