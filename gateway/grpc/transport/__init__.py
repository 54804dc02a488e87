"""TODO gateway/grpc/transport."""
