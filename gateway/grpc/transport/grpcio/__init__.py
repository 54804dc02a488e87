"""A gRPC server for asyncio on the core of grpcio, with less overhead per call than grpc.aio."""
