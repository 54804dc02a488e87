"""A gRPC server of Sluice's own over HTTP/2 (RFC 9113). Only `grpc_connection` and `server` do I/O."""
