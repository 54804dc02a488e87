"""One inference by `sluice infer`: its inputs, and its way over HTTP and gRPC."""
