"""gRPC servers on the running event loop: what both have in common."""
