"""TODO gateway/grpc."""
